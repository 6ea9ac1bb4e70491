// A list of variants as one: what a kernel calls. Every function is a no-op or the identity where no member defines it.
#pragma once
#include "probe.h"
#include "range_set.h"

namespace attnloom {

// One variant of a chain and the field of Params that holds its parameters.
template <class V, auto Field>
struct Member {
  using Variant = V;
  static constexpr auto field = Field;
};

namespace detail {

template <class Params, class M>
using MemberParams = std::remove_cvref_t<decltype(std::declval<const Params&>().*M::field)>;

template <class V, class P>
constexpr int extra_ranges() {
  if constexpr (defines_kv_range<V>) return requires(const V v, const P& p, const Site& s) {
      { v.kv_range(p, s) } -> std::same_as<Ranges>;
    };
  else return 0;
}

// A line is of the keys' places: beside a transform that is none, a kernel has to tell them apart.
template <class V, class P>
constexpr bool asks_for_key() {
  return defines_logits_mask<V> ||
         (defines_logits_transform<V> && (!attnloom::takes_any_logit<V, P> || attnloom::linear_in_distance<V>()));
}

template <class V>
constexpr bool monotone() {
  if constexpr (!defines_kv_range<V>) return true;
  else if constexpr (defines_range_monotone<V>) return V::range_monotone;
  else return false;
}
template <class V>
constexpr bool head_uniform() {
  if constexpr (!defines_kv_range<V>) return true;
  else if constexpr (defines_range_head_uniform<V>) return V::range_head_uniform;
  else return false;
}

template <class V, class P>
constexpr int rotated_dims() {
  if constexpr (requires { V::template rotated_dims<P>; }) return V::template rotated_dims<P>;
  else return 0;
}

}  // namespace detail

template <class Params_, class... Members>
struct Composed {
  using Params = Params_;

  static constexpr bool has_query_transform = (defines_query_transform<typename Members::Variant> || ...);
  static constexpr bool has_key_transform = (defines_key_transform<typename Members::Variant> || ...);
  static constexpr bool has_value_transform = (defines_value_transform<typename Members::Variant> || ...);
  static constexpr bool has_logits_transform = (defines_logits_transform<typename Members::Variant> || ...);
  static constexpr bool has_logits_mask = (defines_logits_mask<typename Members::Variant> || ...);
  static constexpr bool has_kv_range = (defines_kv_range<typename Members::Variant> || ...);
  static constexpr bool has_row_init = (defines_row_init<typename Members::Variant> || ...);
  static constexpr bool has_output_transform = (defines_output_transform<typename Members::Variant> || ...);
  static constexpr bool use_softmax = (wants_softmax<typename Members::Variant>() && ...);
  static constexpr bool range_monotone = (detail::monotone<typename Members::Variant>() && ...);
  static constexpr bool range_head_uniform = (detail::head_uniform<typename Members::Variant>() && ...);
  // Whether all that becomes of logits is that a line of their row is added: see `line`.
  static constexpr bool linear_in_distance =
      has_logits_transform && !has_logits_mask &&
      ((!defines_logits_transform<typename Members::Variant> || attnloom::linear_in_distance<typename Members::Variant>()) && ...);
  // Whether the chain of a logit depends on which key it is of, other than as `line` says.
  static constexpr bool logits_by_key = !linear_in_distance &&
      (detail::asks_for_key<typename Members::Variant, detail::MemberParams<Params, Members>>() || ...);
  // Whether what becomes of logits may be a curve: see `curve`.
  static constexpr bool may_curve = use_softmax && has_logits_transform && !logits_by_key && !linear_in_distance;
  static constexpr int rotated_dims = (0 + ... + detail::rotated_dims<typename Members::Variant, detail::MemberParams<Params, Members>>());
  static constexpr int max_ranges =
      (1 + ... + detail::extra_ranges<typename Members::Variant, detail::MemberParams<Params, Members>>());

  using Visible = RangeSet<max_ranges>;

  template <class Row>
  static ATTNLOOM_FN void query_transform([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    (query_step<Members>(p, row, site), ...);
  }
  template <class Row>
  static ATTNLOOM_FN void key_transform([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    (key_step<Members>(p, row, site), ...);
  }
  template <class Row>
  static ATTNLOOM_FN void value_transform([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    (value_step<Members>(p, row, site), ...);
  }
  template <class Row>
  static ATTNLOOM_FN void output_transform([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    (output_step<Members>(p, row, site), ...);
  }

  // The chain of logit transforms, in the listed order.
  static ATTNLOOM_FN float logits_transform([[maybe_unused]] const Params& p, float logit, [[maybe_unused]] const Site& site) {
    ((logit = logits_step<Members>(p, logit, site)), ...);
    return logit;
  }

  // What is added to the logits of the row of `site`, where `linear_in_distance`.
  static ATTNLOOM_FN Line line([[maybe_unused]] const Params& p, [[maybe_unused]] Site site) {
    site.distance = {attnloom::nan, 0.0f};  // known for a pair alone
    Line line{0.0f, 0.0f};
    ((line = row_step<Members>(p, line, site)), ...);
    return line;
  }

  // What becomes of the logits of the row of `site`, where `may_curve`.
  static ATTNLOOM_FN Curve curve([[maybe_unused]] const Params& p, [[maybe_unused]] Site site) {
    site.distance = {attnloom::nan, 0.0f};  // known for a pair alone
    Curve curve{0.0f, 0.0f, 0.0f, inf};
    ((curve = row_step<Members>(p, curve, site)), ...);
    return curve;
  }

  // True where every mask keeps the pair.
  static ATTNLOOM_FN bool logits_mask([[maybe_unused]] const Params& p, [[maybe_unused]] const Site& site) {
    return (true & ... & mask_step<Members>(p, site));
  }

  // The positions that every kv_range leaves to the row of `site`; all of them where there is none.
  static ATTNLOOM_FN Visible kv_range([[maybe_unused]] const Params& p, [[maybe_unused]] const Site& site) {
    Visible set;
    set.append({kPosMin, kPosMax});
    (range_step<Members>(p, set, site), ...);
    return set;
  }

  // What joins the row's state once; (-inf, 0) where nothing does.
  static ATTNLOOM_FN RowInit row_init([[maybe_unused]] const Params& p, [[maybe_unused]] const Site& site) {
    RowInit init{-inf, 0.0f};
    (init_step<Members>(p, init, site), ...);
    return init;
  }

 private:
  template <class M>
  static ATTNLOOM_FN const auto& params_of(const Params& p) {
    return p.*M::field;
  }

  template <class M, class Row>
  static ATTNLOOM_FN void query_step([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_query_transform<V>) V{}.query_transform(params_of<M>(p), row, site);
  }
  template <class M, class Row>
  static ATTNLOOM_FN void key_step([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_key_transform<V>) V{}.key_transform(params_of<M>(p), row, site);
  }
  template <class M, class Row>
  static ATTNLOOM_FN void value_step([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_value_transform<V>) V{}.value_transform(params_of<M>(p), row, site);
  }
  template <class M, class Row>
  static ATTNLOOM_FN void output_step([[maybe_unused]] const Params& p, [[maybe_unused]] Row& row, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_output_transform<V>) V{}.output_transform(params_of<M>(p), row, site);
  }
  template <class M>
  static ATTNLOOM_FN float logits_step([[maybe_unused]] const Params& p, float logit, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_logits_transform<V>) return V{}.logits_transform(params_of<M>(p), logit, site);
    else return logit;
  }
  // Of all logits of a row as one: a Line or a Curve.
  template <class M, class Row>
  static ATTNLOOM_FN Row row_step([[maybe_unused]] const Params& p, const Row& row, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_logits_transform<V>) return V{}.logits_transform(params_of<M>(p), row, site);
    else return row;
  }
  template <class M>
  static ATTNLOOM_FN bool mask_step([[maybe_unused]] const Params& p, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_logits_mask<V>) return V{}.logits_mask(params_of<M>(p), site);
    else return true;
  }
  template <class M>
  static ATTNLOOM_FN void range_step([[maybe_unused]] const Params& p, [[maybe_unused]] Visible& set, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_kv_range<V>) set = detail::intersect(set, V{}.kv_range(params_of<M>(p), site));
  }
  template <class M>
  static ATTNLOOM_FN void init_step([[maybe_unused]] const Params& p, [[maybe_unused]] RowInit& init, [[maybe_unused]] const Site& site) {
    using V = typename M::Variant;
    if constexpr (defines_row_init<V>) {
      const RowInit one = V{}.row_init(params_of<M>(p), site);
      if (one.m == -inf) return;
      if (init.m == -inf) {
        init = one;
        return;
      }
      const float m = max(init.m, one.m);
      init = {m, init.d * attnloom::exp(init.m - m) + one.d * attnloom::exp(one.m - m)};
    }
  }
};

}  // namespace attnloom
