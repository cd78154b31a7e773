#include "engine/text/jinja/parser.h"

#include <algorithm>

#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/lexer.h"

namespace runnel::text::jinja {
namespace {

class Parser {
  public:
    explicit Parser(std::string_view source) : stream_(lex(source)), expressions_(stream_, symbols_) {}

    std::shared_ptr<const Program> run() {
        auto program = std::make_shared<Program>();
        program->body = body({});
        expressions_.check();
        program->names = std::move(symbols_).take();
        return program;
    }

  private:
    using Ends = std::initializer_list<std::string_view>;

    // Parses up to one of the tags `ends`, which becomes the current token, or to the end of the template.
    Body body(Ends ends);
    // Parses a block after its head, and consumes the tag of `ends` that ends it; returns that tag's name.
    std::string block(Body &into, Ends ends);
    void statement(Body &into);
    void add(Body &into, Place place, Statement::Node node) {
        into.push_back(Statement{place, std::move(node)});
    }
    void if_statement(Body &into, Place place);
    void for_statement(Body &into, Place place);
    void set_statement(Body &into, Place place);
    void macro_statement(Body &into, Place place);
    void call_statement(Body &into, Place place);
    void with_statement(Body &into, Place place);
    void block_statement(Body &into, Place place);
    void generation_statement(Body &into, Place place);
    void autoescape_statement(Body &into, Place place);
    void filter_statement(Body &into, Place place);
    void print_statement(Body &into, Place place);
    void jump_statement(Body &into, Place place, bool leaves);
    void parameters(Macro &macro);
    void macro_body(Macro &macro, std::string_view end);
    [[noreturn]] void fail_tag(const Token &token) const;

    TokenStream stream_;
    SymbolTable symbols_;
    ExpressionParser expressions_;
    std::vector<std::string> open_;  // blocks
    int loops_ = 0;                  // loops around the current statement, within its macro
};

Body Parser::body(Ends ends) {
    Body result;
    for (;;) {
        const Token &token = stream_.current();
        switch (token.kind) {
            case TokenKind::Data:
                add(result, token.place, TextOutput{token.text});
                stream_.next();
                break;
            case TokenKind::VariableBegin: {
                const Place place = stream_.next().place;
                std::vector<Expr> values;
                values.push_back(expressions_.tuple());
                add(result, place, Output{std::move(values)});
                stream_.expect(TokenKind::VariableEnd, "'}}'");
                break;
            }
            case TokenKind::BlockBegin: {
                stream_.next();
                const Token &name = stream_.current();
                if (name.kind == TokenKind::Name &&
                    std::find(ends.begin(), ends.end(), std::string_view(name.text)) != ends.end())
                    return result;
                statement(result);
                stream_.expect(TokenKind::BlockEnd, "'%}'");
                break;
            }
            default:
                return result;  // the end of the template
        }
    }
}

std::string Parser::block(Body &into, Ends ends) {
    const Place place = stream_.place();
    stream_.skip_operator(":");
    stream_.expect(TokenKind::BlockEnd, "'%}'");
    into = body(ends);
    if (stream_.current().kind == TokenKind::End)
        TokenStream::fail("this '" + open_.back() + "' has no '" + std::string(*(ends.end() - 1)) + "'",
                          place);
    return stream_.next().text;
}

void Parser::statement(Body &into) {
    const Token &token = stream_.current();
    if (token.kind != TokenKind::Name) stream_.fail_expected("the name of a tag");
    if (open_.size() >= kMaxBlocks) TokenStream::fail("blocks are nested too deeply", token.place);
    using Method = void (Parser::*)(Body &, Place);
    constexpr std::pair<std::string_view, Method> statements[] = {
        {"if", &Parser::if_statement},
        {"for", &Parser::for_statement},
        {"set", &Parser::set_statement},
        {"macro", &Parser::macro_statement},
        {"call", &Parser::call_statement},
        {"with", &Parser::with_statement},
        {"block", &Parser::block_statement},
        {"generation", &Parser::generation_statement},
        {"autoescape", &Parser::autoescape_statement},
        {"filter", &Parser::filter_statement},
        {"print", &Parser::print_statement},
    };
    if (token.text == "break" || token.text == "continue") {
        stream_.next();
        return jump_statement(into, token.place, token.text == "break");
    }
    const auto *const found = std::find_if(std::begin(statements), std::end(statements),
                                           [&](const auto &entry) { return entry.first == token.text; });
    if (found == std::end(statements)) fail_tag(token);
    open_.push_back(token.text);
    stream_.next();
    (this->*found->second)(into, token.place);
    open_.pop_back();
}

void Parser::fail_tag(const Token &token) const {
    if (token.text == "include" || token.text == "import" || token.text == "from" || token.text == "extends")
        TokenStream::fail(
            "'" + token.text + "' is not supported: a chat template cannot load other templates",
            token.place);
    TokenStream::fail("Encountered unknown tag '" + token.text + "'" +
                          (open_.empty() ? "" : " within '" + open_.back() + "'"),
                      token.place);
}

void Parser::if_statement(Body &into, Place place) {
    If result;
    const size_t mark = expressions_.mark();
    std::string end = "elif";
    while (end == "elif") {
        Expr condition = expressions_.tuple(false);
        Body branch;
        end = block(branch, {"elif", "else", "endif"});
        result.branches.emplace_back(std::move(condition), std::move(branch));
    }
    if (end == "else") block(result.otherwise, {"endif"});
    expressions_.forgive(mark);
    add(into, place, std::move(result));
}

void Parser::for_statement(Body &into, Place place) {
    Target target = expressions_.target("in", false);
    stream_.expect_name("in");
    Expr items = expressions_.tuple(false, "recursive");
    std::optional<Expr> condition;
    if (stream_.skip_name("if")) condition = expressions_.expression();
    const bool recursive = stream_.skip_name("recursive");
    For result{std::move(target), std::move(items), std::move(condition), recursive, false, {}, {}};
    const auto met = std::exchange(expressions_.met, {});
    ++loops_;
    const std::string end = block(result.body, {"else", "endfor"});
    --loops_;
    result.uses_loop = recursive || expressions_.met.loop;
    expressions_.met.add(met);
    if (end == "else") block(result.otherwise, {"endfor"});
    add(into, place, std::move(result));
}

void Parser::set_statement(Body &into, Place place) {
    Target target = expressions_.target({}, true);
    if (stream_.skip_operator("=")) {
        add(into, place, Set{std::move(target), expressions_.tuple()});
        return;
    }
    SetBlock result{std::move(target), expressions_.filters(), {}};
    block(result.body, {"endset"});
    add(into, place, std::move(result));
}

void Parser::parameters(Macro &macro) {
    stream_.expect_operator("(");
    while (!stream_.current().is_operator(")")) {
        if (!macro.parameters.empty()) stream_.expect_operator(",");
        const Place place = stream_.place();
        Parameter parameter{expressions_.name_target(), nullptr, std::nullopt};
        parameter.name = symbols_.name(parameter.symbol);
        if (stream_.skip_operator("="))
            parameter.preset = expressions_.expression();
        else if (!macro.parameters.empty() && macro.parameters.back().preset)
            TokenStream::fail("non-default argument follows default argument", place);
        macro.parameters.push_back(std::move(parameter));
    }
    stream_.expect_operator(")");
}

void Parser::macro_body(Macro &macro, std::string_view end) {
    const auto met = std::exchange(expressions_.met, {});
    const int loops = std::exchange(loops_, 0);
    block(macro.body, {end});
    loops_ = loops;
    macro.uses_caller = expressions_.met.caller;
    macro.uses_varargs = expressions_.met.varargs;
    macro.uses_kwargs = expressions_.met.kwargs;
    expressions_.met.add(met);
}

void Parser::macro_statement(Body &into, Place place) {
    const Symbol symbol = expressions_.name_target();
    Macro macro;
    macro.name = symbols_.name(symbol)->text.bytes();
    macro.place = place;
    parameters(macro);
    macro_body(macro, "endmacro");
    add(into, place, MacroDefinition{symbol, std::make_shared<const Macro>(std::move(macro))});
}

void Parser::call_statement(Body &into, Place place) {
    Macro caller;
    caller.name = "caller";
    caller.place = place;
    if (stream_.current().is_operator("(")) parameters(caller);
    Expr call = expressions_.expression();
    if (!std::holds_alternative<Call>(call.node)) TokenStream::fail("expected a call", place);
    macro_body(caller, "endcall");
    add(into, place, CallBlock{std::move(call), std::make_shared<const Macro>(std::move(caller))});
}

void Parser::with_statement(Body &into, Place place) {
    With result;
    while (stream_.current().kind != TokenKind::BlockEnd) {
        if (!result.assignments.empty()) stream_.expect_operator(",");
        Target target = expressions_.target({}, false);
        stream_.expect_operator("=");
        result.assignments.emplace_back(std::move(target), expressions_.expression());
    }
    block(result.body, {"endwith"});
    add(into, place, std::move(result));
}

void Parser::block_statement(Body &into, Place place) {
    const std::string name = stream_.expect_any_name();
    stream_.skip_name("scoped");
    stream_.skip_name("required");
    Scoped result;
    block(result.body, {"endblock"});
    stream_.skip_name(name);
    add(into, place, std::move(result));
}

// {% generation %} marks the assistant's text for training. break and continue cannot leave its scope.
void Parser::generation_statement(Body &into, Place place) {
    const int loops = std::exchange(loops_, 0);
    Scoped result;
    block(result.body, {"endgeneration"});
    loops_ = loops;
    add(into, place, std::move(result));
}

void Parser::autoescape_statement(Body &into, Place place) {
    const Expr on = expressions_.expression();
    const auto *literal = std::get_if<Literal>(&on.node);
    if (!literal || is_true(literal->value))
        TokenStream::fail("chat templates are not HTML: autoescape is not supported", place);
    Scoped result;
    block(result.body, {"endautoescape"});
    add(into, place, std::move(result));
}

void Parser::filter_statement(Body &into, Place place) {
    FilterBlock result{expressions_.filters(true), {}};
    block(result.body, {"endfilter"});
    add(into, place, std::move(result));
}

void Parser::print_statement(Body &into, Place place) {
    Output result;
    while (stream_.current().kind != TokenKind::BlockEnd) {
        if (!result.values.empty()) stream_.expect_operator(",");
        result.values.push_back(expressions_.expression());
    }
    add(into, place, std::move(result));
}

void Parser::jump_statement(Body &into, Place place, bool leaves) {
    if (loops_ == 0)
        TokenStream::fail(std::string(leaves ? "'break'" : "'continue'") + " outside of a loop", place);
    add(into, place, Jump{leaves});
}

}  // namespace

std::shared_ptr<const Program> parse(std::string_view source) {
    if (source.size() > kMaxSource)
        fail(TemplateError::Kind::Syntax,
             "the template is longer than " + std::to_string(kMaxSource) + " bytes");
    return Parser(source).run();
}

}  // namespace runnel::text::jinja
