#include "engine/text/jinja/runtime.h"

#include <algorithm>

namespace runnel::text::jinja {

Runtime::~Runtime() {
    for (const auto &entry : namespaces_) entry->attributes = Dict();
}

Value Runtime::new_namespace(Dict attributes) {
    charge(sizeof(Namespace) + attributes.size() * sizeof(Dict::Entry) + kStringOverhead);
    namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(attributes)}));
    return namespaces_.back();
}

void Runtime::fail_steps() {
    fail(TemplateError::Kind::Limit, "the template takes too many steps");
}
void Runtime::fail_memory() {
    fail(TemplateError::Kind::Limit, "the template takes too much memory");
}
void Runtime::fail_output() {
    fail(TemplateError::Kind::Limit, "the template writes too much text");
}
void Runtime::fail_depth() {
    fail(TemplateError::Kind::Limit, "the template calls itself too deeply");
}

std::tm local_time() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return local;
}

Value call(Runtime &runtime, const Value &callee, Arguments &arguments) {
    runtime.step();
    require_defined(callee);
    const std::shared_ptr<const Function> function = callee.is(Type::Function) ? callee.function()
                                                     : callee.is(Type::Loop)   ? callee.loop()->recurse
                                                                               : nullptr;
    if (!function && callee.is(Type::Loop))
        fail("The loop must have the 'recursive' marker to be called recursively.");
    if (!function) fail("'" + std::string(type_name(callee)) + "' object is not callable");
    return function->call(runtime, arguments);
}

std::vector<const Value *> bind(std::string_view function, const Arguments &arguments,
                                std::initializer_list<std::string_view> names, size_t required) {
    const std::string called = std::string(function) + "()";
    if (arguments.positional.size() > names.size())
        fail(called + " takes at most " + std::to_string(names.size()) + " arguments (" +
             std::to_string(arguments.positional.size()) + " given)");
    std::vector<const Value *> bound(names.size(), nullptr);
    for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
    for (const auto &[name, value] : arguments.keyword) {
        const auto at = std::find(names.begin(), names.end(), name->text.view());
        if (at == names.end())
            fail(called + " got an unexpected keyword argument '" + name->text.bytes() + "'");
        const Value *&slot = bound[static_cast<size_t>(at - names.begin())];
        if (slot) fail(called + " got multiple values for argument '" + name->text.bytes() + "'");
        slot = &value;
    }
    for (size_t i = 0; i < required; ++i)
        if (!bound[i]) fail(called + " misses the argument '" + std::string(names.begin()[i]) + "'");
    return bound;
}

}  // namespace runnel::text::jinja
