// What a variant struct defines, by name and by signature: a functor whose signature does not match is an error with
// the struct's and the functor's name, never a functor that is silently dropped.
#pragma once
#include <concepts>
#include <type_traits>
#include <utility>

#include "variant.h"

namespace attnloom {

namespace detail {

struct AllNames {
  int query_transform, key_transform, value_transform, logits_transform, logits_mask, kv_range, row_init,
      output_transform, use_softmax, range_monotone, range_head_uniform, linear_in_distance;
};

// `&Both<V>::name` is ambiguous exactly if V has a member of that name, whatever it is.
template <class V>
struct Both : V, AllNames {};

// Converts to float alone, so that `int logit` and `double logit` do not pass for `float logit`.
struct ExactFloat {
  template <std::same_as<float> T>
  ATTNLOOM_FN operator T() const {
    return 0.0f;
  }
};

using ProbeRow = Row<HostMap<64>>;

}  // namespace detail

namespace functor {
enum : unsigned {
  none = 0,
  query_transform = 1,
  key_transform = 2,
  value_transform = 4,
  logits_transform = 8,
  logits_mask = 16,
  kv_range = 32,
  row_init = 64,
  output_transform = 128,
};
}

template <class V>
concept stateless = std::is_empty_v<V> && std::is_default_constructible_v<V> && !std::is_final_v<V>;

#define ATTNLOOM_PROBE(name) \
  template <class V>         \
  inline constexpr bool defines_##name = !requires { &detail::Both<V>::name; };
ATTNLOOM_PROBE(query_transform)
ATTNLOOM_PROBE(key_transform)
ATTNLOOM_PROBE(value_transform)
ATTNLOOM_PROBE(logits_transform)
ATTNLOOM_PROBE(logits_mask)
ATTNLOOM_PROBE(kv_range)
ATTNLOOM_PROBE(row_init)
ATTNLOOM_PROBE(output_transform)
ATTNLOOM_PROBE(use_softmax)
ATTNLOOM_PROBE(range_monotone)
ATTNLOOM_PROBE(range_head_uniform)
ATTNLOOM_PROBE(linear_in_distance)
#undef ATTNLOOM_PROBE

#define ATTNLOOM_ROW_SIGNATURE(name)                                                                             \
  template <class V, class P>                                                                                    \
  concept signature_##name = requires(const V v, const P& p, detail::ProbeRow& row, const Site& site) {          \
    { v.name(p, row, site) } -> std::same_as<void>;                                                              \
  };
ATTNLOOM_ROW_SIGNATURE(query_transform)
ATTNLOOM_ROW_SIGNATURE(key_transform)
ATTNLOOM_ROW_SIGNATURE(value_transform)
ATTNLOOM_ROW_SIGNATURE(output_transform)
#undef ATTNLOOM_ROW_SIGNATURE

// Of any type of logit.
template <class V, class P>
concept takes_any_logit = requires(const V v, const P& p, const Line& line, const Curve& curve, const Site& site) {
  { v.logits_transform(p, line, site) } -> std::same_as<Line>;
  { v.logits_transform(p, curve, site) } -> std::same_as<Curve>;
};

template <class V, class P>
concept signature_logits_transform = requires(const V v, const P& p, const Site& site) {
  { v.logits_transform(p, 0.0f, site) } -> std::same_as<float>;
} && (takes_any_logit<V, P> || requires(const V v, const P& p, const Site& site) {
  { v.logits_transform(p, detail::ExactFloat{}, site) } -> std::same_as<float>;
});

template <class V, class P>
concept signature_logits_mask = requires(const V v, const P& p, const Site& site) {
  { v.logits_mask(p, site) } -> std::same_as<bool>;
};

template <class V, class P>
concept signature_kv_range = requires(const V v, const P& p, const Site& site) {
  { v.kv_range(p, site) } -> std::same_as<Range>;
} || requires(const V v, const P& p, const Site& site) {
  { v.kv_range(p, site) } -> std::same_as<Ranges>;
};

template <class V, class P>
concept signature_row_init = requires(const V v, const P& p, const Site& site) {
  { v.row_init(p, site) } -> std::same_as<RowInit>;
};

#define ATTNLOOM_CONSTANT_SIGNATURE(name) \
  template <class V, class P>             \
  concept signature_##name = std::same_as<decltype(V::name), const bool>;
ATTNLOOM_CONSTANT_SIGNATURE(use_softmax)
ATTNLOOM_CONSTANT_SIGNATURE(range_monotone)
ATTNLOOM_CONSTANT_SIGNATURE(range_head_uniform)
ATTNLOOM_CONSTANT_SIGNATURE(linear_in_distance)
#undef ATTNLOOM_CONSTANT_SIGNATURE

template <class V>
constexpr bool linear_in_distance() {
  if constexpr (defines_linear_in_distance<V>) return V::linear_in_distance;
  else return false;
}

template <class V>
constexpr bool wants_softmax() {
  if constexpr (defines_use_softmax<V>) return V::use_softmax;
  else return true;
}

}  // namespace attnloom

// Stops the compiler with the variant's own names where `V` breaks the contract. P: its parameters, OWNER: who to tell.
#define ATTNLOOM_CHECK_VARIANT(V, P, OWNER)                                                                        \
  static_assert(attnloom::stateless<V>,                                                                            \
                OWNER ": " #V " must be an empty, default-constructible struct that is not final: state belongs in " \
                      "parameters");                                                                               \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, query_transform, "void query_transform(const Params&, Row&, const Site&) const") \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, key_transform, "void key_transform(const Params&, Row&, const Site&) const") \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, value_transform, "void value_transform(const Params&, Row&, const Site&) const") \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, logits_transform,                                                          \
                           "float logits_transform(const Params&, float, const Site&) const")                      \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, logits_mask, "bool logits_mask(const Params&, const Site&) const")         \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, kv_range, "Range or Ranges kv_range(const Params&, const Site&) const")    \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, row_init, "RowInit row_init(const Params&, const Site&) const")            \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, output_transform, "void output_transform(const Params&, Row&, const Site&) const") \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, use_softmax, "static constexpr bool use_softmax")                          \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, range_monotone, "static constexpr bool range_monotone")                    \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, range_head_uniform, "static constexpr bool range_head_uniform")              \
  ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, linear_in_distance, "static constexpr bool linear_in_distance")              \
  static_assert(!attnloom::linear_in_distance<V>() || attnloom::takes_any_logit<V, P>,                                 \
                OWNER ": " #V "::linear_in_distance needs `template <class Params, class Logit> Logit "               \
                      "logits_transform(const Params&, Logit, const Site&) const`");

#define ATTNLOOM_CHECK_SIGNATURE(V, P, OWNER, name, wanted) \
  static_assert(!attnloom::defines_##name<V> || attnloom::signature_##name<V, P>, OWNER ": " #V "::" #name " must be `" wanted "`");

// Holds the descriptor's list of functors (an `or` of attnloom::functor) to the struct's.
#define ATTNLOOM_CHECK_FUNCTORS(V, OWNER, declared)               \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, query_transform)     \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, key_transform)       \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, value_transform)     \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, logits_transform)    \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, logits_mask)         \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, kv_range)            \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, row_init)            \
  ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, output_transform)

#define ATTNLOOM_CHECK_FUNCTOR(V, OWNER, declared, name)                                       \
  static_assert(attnloom::defines_##name<V> == bool((declared) & attnloom::functor::name),     \
                OWNER ": " #name " must be both defined by " #V " and declared by its descriptor, or neither");

#define ATTNLOOM_CHECK_SOFTMAX(V, OWNER, wanted)                                               \
  static_assert(attnloom::wants_softmax<V>() == wanted,                                        \
                OWNER ": the descriptor says use_softmax is " #wanted ", " #V " says otherwise");
