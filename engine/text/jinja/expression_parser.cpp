#include "engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

namespace runnel::text::jinja {
namespace {

constexpr uint32_t kMaxNested = 200;  // nested brackets and the like, which use the parser's own stack

ExprPtr boxed(Expr expr) {
    return std::make_unique<Expr>(std::move(expr));
}

uint32_t height_of(const std::vector<Expr> &items) {
    uint32_t height = 0;
    for (const Expr &item : items) height = std::max(height, item.height);
    return height;
}

uint32_t height_of(const CallArguments &arguments) {
    uint32_t height = height_of(arguments.positional);
    for (const auto &entry : arguments.keyword) height = std::max(height, entry.value.height);
    for (const ExprPtr *extra : {&arguments.star, &arguments.star_star})
        if (*extra) height = std::max(height, (*extra)->height);
    return height;
}

bool is_reserved(const std::string &name) {
    return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" ||
           name == "None";
}

}  // namespace

class ExpressionParser::Nested {
  public:
    explicit Nested(ExpressionParser &parser) : parser_(parser) {
        if (++parser_.nested_ > kMaxNested) {
            --parser_.nested_;
            TokenStream::fail("this expression is nested too deeply", parser_.stream_.place());
        }
    }
    ~Nested() { --parser_.nested_; }
    Nested(const Nested &) = delete;
    Nested &operator=(const Nested &) = delete;

  private:
    ExpressionParser &parser_;
};

// `height`: the largest height of the node's parts.
template <class Node>
Expr ExpressionParser::make(Place place, Node node, uint32_t height) const {
    if (height >= kMaxHeight) TokenStream::fail("this expression is too long", place);
    return Expr{place, height + 1, Expr::Node(std::move(node))};
}

Expr ExpressionParser::expression(bool with_if) {
    if (!with_if) return or_expression();
    const Nested nested(*this);
    const size_t begin = mark();
    Expr expr = or_expression();
    while (stream_.current().is_name("if")) {
        const Place place = stream_.next().place;
        Expr condition = or_expression();
        ExprPtr otherwise;
        if (stream_.skip_name("else")) otherwise = boxed(expression());
        const uint32_t height = std::max({expr.height, condition.height, otherwise ? otherwise->height : 0});
        expr = make(place,
                    Conditional{boxed(std::move(condition)), boxed(std::move(expr)), std::move(otherwise)},
                    height);
        forgive(begin);
    }
    return expr;
}

Expr ExpressionParser::tuple(bool with_if, std::string_view end, bool in_parentheses) {
    const Place place = stream_.place();
    const auto at_end = [&] {
        const Token &token = stream_.current();
        return token.kind == TokenKind::VariableEnd || token.kind == TokenKind::BlockEnd ||
               token.is_operator(")") || (!end.empty() && token.is_name(end));
    };
    std::vector<Expr> items;
    bool is_tuple = false;
    for (;;) {
        if (!items.empty()) stream_.expect_operator(",");
        if (at_end()) break;
        items.push_back(expression(with_if));
        if (!stream_.current().is_operator(",")) break;
        is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items.front());
    if (!is_tuple && !in_parentheses) stream_.fail_expected("an expression");
    const uint32_t height = height_of(items);
    return make(place, ListLiteral{std::move(items), true}, height);
}

Expr ExpressionParser::or_expression() {
    Expr left = and_expression();
    while (stream_.current().is_name("or")) {
        const Place place = stream_.next().place;
        Expr right = and_expression();
        const uint32_t height = std::max(left.height, right.height);
        left = make(place, Logic{false, boxed(std::move(left)), boxed(std::move(right))}, height);
    }
    return left;
}

Expr ExpressionParser::and_expression() {
    Expr left = not_expression();
    while (stream_.current().is_name("and")) {
        const Place place = stream_.next().place;
        Expr right = not_expression();
        const uint32_t height = std::max(left.height, right.height);
        left = make(place, Logic{true, boxed(std::move(left)), boxed(std::move(right))}, height);
    }
    return left;
}

Expr ExpressionParser::not_expression() {
    if (!stream_.current().is_name("not")) return comparison();
    const Nested nested(*this);
    const Place place = stream_.next().place;
    Expr operand = not_expression();
    const uint32_t height = operand.height;
    return make(place, Unary{Unary::Op::Not, boxed(std::move(operand))}, height);
}

Expr ExpressionParser::comparison() {
    constexpr std::pair<std::string_view, CompareOp> operators[] = {
        {"==", CompareOp::Equal},     {"!=", CompareOp::NotEqual}, {"<", CompareOp::Less},
        {"<=", CompareOp::LessEqual}, {">", CompareOp::Greater},   {">=", CompareOp::GreaterEqual}};
    Expr first = sum();
    std::vector<ComparedWith> rest;
    uint32_t height = first.height;
    const Place place = stream_.place();
    for (;;) {
        std::optional<CompareOp> op;
        for (const auto &[symbol, candidate] : operators)
            if (stream_.current().is_operator(symbol)) op = candidate;
        if (op) {
            stream_.next();
        } else if (stream_.skip_name("in")) {
            op = CompareOp::In;
        } else if (stream_.current().is_name("not") && stream_.look().is_name("in")) {
            stream_.next();
            stream_.next();
            op = CompareOp::NotIn;
        } else {
            break;
        }
        rest.push_back({*op, sum()});
        height = std::max(height, rest.back().right.height);
    }
    if (rest.empty()) return first;
    return make(place, Comparison{boxed(std::move(first)), std::move(rest)}, height);
}

template <class Next>
Expr ExpressionParser::binary_chain(const Next &next,
                                    std::initializer_list<std::pair<std::string_view, BinaryOp>> operators) {
    Expr left = next();
    for (;;) {
        const auto *const found = std::find_if(operators.begin(), operators.end(), [&](const auto &entry) {
            return stream_.current().is_operator(entry.first);
        });
        if (found == operators.end()) return left;
        const Place place = stream_.next().place;
        Expr right = next();
        const uint32_t height = std::max(left.height, right.height);
        left = make(place, Binary{found->second, boxed(std::move(left)), boxed(std::move(right))}, height);
    }
}

Expr ExpressionParser::sum() {
    return binary_chain([this] { return concatenation(); },
                        {{"+", BinaryOp::Add}, {"-", BinaryOp::Subtract}});
}

Expr ExpressionParser::concatenation() {
    Expr first = product();
    if (!stream_.current().is_operator("~")) return first;
    const Place place = stream_.place();
    std::vector<Expr> parts;
    parts.push_back(std::move(first));
    while (stream_.skip_operator("~")) parts.push_back(product());
    const uint32_t height = height_of(parts);
    return make(place, Concatenation{std::move(parts)}, height);
}

Expr ExpressionParser::product() {
    return binary_chain([this] { return power(); }, {{"*", BinaryOp::Multiply},
                                                     {"/", BinaryOp::Divide},
                                                     {"//", BinaryOp::FloorDivide},
                                                     {"%", BinaryOp::Modulo}});
}

// Left-associative and with lower precedence than a sign: Jinja differs from Python in both.
Expr ExpressionParser::power() {
    return binary_chain([this] { return unary(true); }, {{"**", BinaryOp::Power}});
}

Expr ExpressionParser::unary(bool with_filter) {
    const Token &token = stream_.current();
    const bool minus = token.is_operator("-");
    if (!minus && !token.is_operator("+")) {
        Expr expr = postfix(primary());
        return with_filter ? filtered(std::move(expr)) : std::move(expr);
    }
    const Nested nested(*this);
    const Place place = stream_.next().place;
    Expr operand = unary(false);
    const uint32_t height = operand.height;
    Expr expr =
        make(place, Unary{minus ? Unary::Op::Minus : Unary::Op::Plus, boxed(std::move(operand))}, height);
    expr = postfix(std::move(expr));
    return with_filter ? filtered(std::move(expr)) : std::move(expr);
}

Expr ExpressionParser::primary() {
    const Nested nested(*this);
    const Token &token = stream_.current();
    switch (token.kind) {
        case TokenKind::Name:
            return named();
        case TokenKind::String:
            return string_literal();
        case TokenKind::Integer:
        case TokenKind::Float:
            return number_literal();
        default:
            break;
    }
    if (token.is_operator("[")) return list_literal();
    if (token.is_operator("{")) return dict_literal();
    if (!stream_.skip_operator("(")) TokenStream::fail("unexpected " + describe(token), token.place);
    Expr expr = tuple(true, {}, true);
    stream_.expect_operator(")");
    return expr;
}

Expr ExpressionParser::named() {
    const Token &token = stream_.next();
    const std::string &name = token.text;
    if (name == "true" || name == "True") return make(token.place, Literal{Value::boolean(true)}, 0);
    if (name == "false" || name == "False") return make(token.place, Literal{Value::boolean(false)}, 0);
    if (name == "none" || name == "None") return make(token.place, Literal{Value::none()}, 0);
    const Symbol symbol = symbols_.symbol(name);
    met.caller |= symbol == kCaller;
    met.varargs |= symbol == kVarargs;
    met.kwargs |= symbol == kKwargs;
    met.loop |= symbol == kLoop;
    return make(token.place, Variable{symbol}, 0);
}

Expr ExpressionParser::string_literal() {
    const Place place = stream_.place();
    std::string text;
    while (stream_.current().kind == TokenKind::String) text += stream_.next().text;
    return make(place, Literal{Value::string(std::move(text))}, 0);
}

Expr ExpressionParser::number_literal() {
    const Token &token = stream_.next();
    const std::string &text = token.text;
    const char *const end = text.data() + text.size();
    if (token.kind == TokenKind::Float) {
        double value = 0;
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        // Out of range means infinity or zero, as in Python.
        if (error == std::errc::result_out_of_range) value = std::strtod(text.c_str(), nullptr);
        return make(token.place, Literal{Value::number(value)}, 0);
    }
    const char prefix = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
    const int base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data() + (base == 10 ? 0 : 2), end, value, base);
    if (error != std::errc() || rest != end) TokenStream::fail("this number is too large", token.place);
    return make(token.place, Literal{Value::integer(value)}, 0);
}

Expr ExpressionParser::list_literal() {
    const Place place = stream_.next().place;
    std::vector<Expr> items;
    while (!stream_.current().is_operator("]")) {
        if (!items.empty()) stream_.expect_operator(",");
        if (stream_.current().is_operator("]")) break;
        items.push_back(expression());
    }
    stream_.expect_operator("]");
    const uint32_t height = height_of(items);
    return make(place, ListLiteral{std::move(items), false}, height);
}

Expr ExpressionParser::dict_literal() {
    const Place place = stream_.next().place;
    std::vector<DictEntry> items;
    uint32_t height = 0;
    while (!stream_.current().is_operator("}")) {
        if (!items.empty()) stream_.expect_operator(",");
        if (stream_.current().is_operator("}")) break;
        Expr key = expression();
        stream_.expect_operator(":");
        Expr value = expression();
        height = std::max({height, key.height, value.height});
        items.push_back({std::move(key), std::move(value)});
    }
    stream_.expect_operator("}");
    return make(place, DictLiteral{std::move(items)}, height);
}

Expr ExpressionParser::postfix(Expr expr) {
    for (;;) {
        const Token &token = stream_.current();
        if (token.is_operator(".") || token.is_operator("["))
            expr = subscript(std::move(expr));
        else if (token.is_operator("("))
            expr = call(std::move(expr));
        else
            return expr;
    }
}

Expr ExpressionParser::filtered(Expr expr) {
    for (;;) {
        const Token &token = stream_.current();
        if (token.is_operator("|")) {
            stream_.next();
            const Place place = stream_.place();
            FilterCall filter = filter_call();
            const uint32_t height = std::max(expr.height, height_of(filter.arguments));
            expr = make(place, Filter{boxed(std::move(expr)), std::move(filter)}, height);
        } else if (token.is_name("is")) {
            expr = test(std::move(expr));
        } else if (token.is_operator("(")) {
            expr = call(std::move(expr));
        } else {
            return expr;
        }
    }
}

Expr ExpressionParser::subscript(Expr object) {
    const Token &token = stream_.next();
    const uint32_t height = object.height;
    if (token.text == ".") {
        const Token &name = stream_.current();
        if (name.kind == TokenKind::Name) {
            stream_.next();
            const Symbol symbol = symbols_.symbol(name.text);
            return make(name.place, Attribute{boxed(std::move(object)), symbols_.name(symbol)}, height);
        }
        if (name.kind != TokenKind::Integer) stream_.fail_expected("a name or number");
        Expr index = number_literal();
        return make(name.place, Item{boxed(std::move(object)), boxed(std::move(index))}, height);
    }
    ExprPtr parts[3];
    bool is_slice = false;
    uint32_t highest = height;
    const auto at_end = [&] {
        return stream_.current().is_operator("]") || stream_.current().is_operator(":");
    };
    for (int part = 0; part < 3; ++part) {
        if (!at_end()) {
            parts[part] = boxed(expression());
            highest = std::max(highest, parts[part]->height);
        }
        if (!stream_.current().is_operator(":") || part == 2) break;
        stream_.next();
        is_slice = true;
    }
    if (!is_slice && parts[0] && stream_.current().is_operator(",")) {  // an index that is a tuple
        std::vector<Expr> items;
        items.push_back(std::move(*parts[0]));
        while (stream_.skip_operator(",")) items.push_back(expression());
        highest = std::max(highest, height_of(items) + 1);
        parts[0] = boxed(make(token.place, ListLiteral{std::move(items), true}, highest));
    }
    if (!is_slice && !parts[0]) stream_.fail_expected("an index");
    stream_.expect_operator("]");
    if (!is_slice) return make(token.place, Item{boxed(std::move(object)), std::move(parts[0])}, highest);
    return make(
        token.place,
        Slice{boxed(std::move(object)), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])},
        highest);
}

CallArguments ExpressionParser::arguments() {
    const Place place = stream_.place();
    stream_.expect_operator("(");
    CallArguments arguments;
    const auto ensure = [&](bool good) {
        if (!good) TokenStream::fail("the arguments are in the wrong order: positional ones first", place);
    };
    bool first = true;
    while (!stream_.current().is_operator(")")) {
        if (!first) stream_.expect_operator(",");
        if (stream_.current().is_operator(")")) break;
        first = false;
        if (stream_.skip_operator("*")) {
            ensure(!arguments.star && !arguments.star_star);
            arguments.star = boxed(expression());
        } else if (stream_.skip_operator("**")) {
            ensure(!arguments.star_star);
            arguments.star_star = boxed(expression());
        } else if (stream_.current().kind == TokenKind::Name && stream_.look().is_operator("=")) {
            ensure(!arguments.star_star);
            const StringRef name = symbols_.name(symbols_.symbol(stream_.next().text));
            stream_.next();
            arguments.keyword.push_back({name, expression()});
        } else {
            ensure(!arguments.star && !arguments.star_star && arguments.keyword.empty());
            arguments.positional.push_back(expression());
        }
    }
    stream_.expect_operator(")");
    return arguments;
}

Expr ExpressionParser::call(Expr callee) {
    const Place place = callee.place;
    CallArguments given = arguments();
    const uint32_t height = std::max(callee.height, height_of(given));
    return make(place, Call{boxed(std::move(callee)), std::move(given)}, height);
}

FilterCall ExpressionParser::filter_call() {
    FilterCall filter;
    filter.place = stream_.place();
    filter.name = stream_.expect_any_name();
    while (stream_.skip_operator(".")) filter.name += "." + stream_.expect_any_name();
    if (stream_.current().is_operator("(")) filter.arguments = arguments();
    filter.function = find_filter(filter.name);
    if (!filter.function)
        unknown_.emplace_back(TemplateError::Kind::Syntax, "No filter named '" + filter.name + "'.",
                              filter.place);
    return filter;
}

std::vector<FilterCall> ExpressionParser::filters(bool inline_start) {
    std::vector<FilterCall> found;
    while (inline_start || stream_.skip_operator("|")) {
        found.push_back(filter_call());
        inline_start = false;
    }
    return found;
}

Expr ExpressionParser::test(Expr input) {
    stream_.next();
    const bool negated = stream_.skip_name("not");
    const Place place = stream_.place();
    Test test;
    test.name = stream_.expect_any_name();
    while (stream_.skip_operator(".")) test.name += "." + stream_.expect_any_name();
    const Token &token = stream_.current();
    const bool is_value = token.kind == TokenKind::Name || token.kind == TokenKind::String ||
                          token.kind == TokenKind::Integer || token.kind == TokenKind::Float ||
                          token.is_operator("[") || token.is_operator("{");
    if (token.is_operator("(")) {
        test.arguments = arguments();
    } else if (is_value && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
        if (token.is_name("is")) TokenStream::fail("You cannot chain multiple tests with is", token.place);
        test.arguments.positional.push_back(postfix(primary()));
    }
    test.function = find_test(test.name);
    if (!test.function)
        unknown_.emplace_back(TemplateError::Kind::Syntax, "No test named '" + test.name + "'.", place);
    uint32_t height = std::max(input.height, height_of(test.arguments));
    test.input = boxed(std::move(input));
    Expr expr = make(place, std::move(test), height);
    if (!negated) return expr;
    height = expr.height;
    return make(place, Unary{Unary::Op::Not, boxed(std::move(expr))}, height);
}

Symbol ExpressionParser::name_target() {
    const Place place = stream_.place();
    const std::string name = stream_.expect_any_name();
    if (is_reserved(name)) TokenStream::fail("can't assign to '" + name + "'", place);
    return symbols_.symbol(name);
}

Target ExpressionParser::one_target(bool with_attributes) {
    const Nested nested(*this);
    const Place place = stream_.place();
    if (stream_.skip_operator("(")) {
        Target inner = target({}, with_attributes);
        stream_.expect_operator(")");
        return inner;
    }
    Target result;
    result.place = place;
    result.symbol = name_target();
    if (with_attributes && stream_.skip_operator("."))
        result.attribute = symbols_.name(symbols_.symbol(stream_.expect_any_name()));
    return result;
}

Target ExpressionParser::target(std::string_view end, bool with_attributes) {
    Target result;
    result.place = stream_.place();
    result.parts.push_back(one_target(with_attributes));
    while (stream_.skip_operator(",")) {
        result.is_tuple = true;
        const Token &token = stream_.current();
        if ((!end.empty() && token.is_name(end)) || token.is_operator("=") || token.is_operator(")")) break;
        result.parts.push_back(one_target(with_attributes));
    }
    if (result.is_tuple) return result;
    Target single = std::move(result.parts.front());
    return single;
}

}  // namespace runnel::text::jinja
