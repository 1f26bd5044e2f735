#include "compile/launch.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace ridge {
namespace {

class Launches {
 public:
  Launches(const Graph& g, std::span<const NodeId> outputs, FusePlan& plan)
      : g_(g), outputs_(outputs.begin(), outputs.end()), problem_(plan.problem), plan_(plan), launch_(plan.groups.size()), shared_(plan.groups.size(), 0) {
    std::iota(launch_.begin(), launch_.end(), size_t(0));
  }

  // Groups that read only program inputs can share a launch without extending any lifetime. Gradients that the program computes would all
  // stay live until the last one is ready: only as many are combined as the program's peak memory allows.
  void share() {
    share_casts();
    std::map<Key, Similar> lists = find_similar();
    for (auto& [key, list] : lists)
      for (size_t i : list.given) launch_[i] = list.given[0];
    std::erase_if(lists, [](const auto& entry) { return entry.second.computed.empty() || entry.second.given.size() + entry.second.computed.size() < 2; });
    if (lists.empty()) return;
    const int64_t peak = peak_of(launch_);
    for (auto& [key, list] : lists) {
      std::stable_sort(list.computed.begin(), list.computed.end(), [&](size_t a, size_t b) { return bytes(a) < bytes(b); });
      auto together = [&](size_t count) {
        std::vector<size_t> launch = launch_;
        for (size_t k = 0; k < count; ++k) launch[list.computed[k]] = list.given.empty() ? list.computed[0] : list.given[0];
        return launch;
      };
      // The longest prefix of the list that does not raise the peak: all of it, or found by bisection.
      size_t good = 0, bad = list.computed.size() + 1;
      for (size_t next = bad - 1; bad - good > 1; next = good + (bad - good) / 2) (peak_of(together(next)) <= peak ? good : bad) = next;
      launch_ = together(good);
    }
  }

  void arrange() {
    std::vector<size_t> order = order_kernels(merged(launch_));
    size_t n = plan_.groups.size();
    if (order.size() != n) fail(ErrorCode::internal, "[fuse] {} of {} kernels wait for each other", n - order.size(), n);
    std::vector<Group> sorted;
    std::vector<size_t> at(n, n);
    for (size_t i : order)
      if (launch_[i] == i) at[i] = sorted.size(), sorted.push_back(std::move(plan_.groups[i]));
    for (size_t i = 0; i < n; ++i)
      if (launch_[i] != i) sorted[at[launch_[i]]].specs.push_back(std::move(plan_.groups[i].specs[0]));
    plan_.groups = std::move(sorted);
  }

 private:
  // Groups with equal arithmetic and equal distance from the program's end do not depend on each other, so launches never wait for each
  // other.
  using Key = std::pair<std::string, size_t>;
  struct Similar {
    std::vector<size_t> given, computed;  // groups that read only program inputs; groups that read tensors the program computes
  };

  // Casts of program inputs (weights in 16 bits): most are read until late, so they can all be computed in one launch.
  void share_casts() {
    std::map<std::string, std::vector<size_t>> lists;
    for (size_t i = 0; i < plan_.groups.size(); ++i) {
      if (plan_.groups[i].kind != Group::Kind::tile) continue;
      const GroupSpec& spec = plan_.groups[i].specs[0];
      if (spec.members.size() != 1 || outputs_.count(spec.members[0])) continue;
      const Node& n = g_[spec.members[0]];
      if (n.op != Op::cast || (n.copy & uint16_t(~kRecomputed))) continue;  // recomputed values are computed late on purpose
      bool given = true;
      each_source(g_, plan_, n.in[0], [&](NodeId source) { given &= g_[source].op == Op::input; });
      if (given) lists[std::string(name(n.type().dtype))].push_back(i);
    }
    for (auto& [type, list] : lists) {
      if (list.size() < 2) continue;
      std::vector<size_t> launch = launch_;
      for (size_t i : list) launch[i] = list[0];
      constexpr double kMax = 1.01;
      if (double(peak_of(launch)) > kMax * double(peak_of(launch_))) continue;
      launch_ = std::move(launch);
      for (size_t i : list) shared_[i] = 1;
    }
  }

  std::map<Key, Similar> find_similar() const {
    std::vector<size_t> way = critical_path(problem_);
    std::map<Key, Similar> lists;
    for (size_t i = 0; i < plan_.groups.size(); ++i) {
      if (plan_.groups[i].kind != Group::Kind::tile || shared_[i]) continue;
      const GroupSpec& spec = plan_.groups[i].specs[0];
      auto number = [&](NodeId id) { return g_.shape(id).numel() == 1; };
      // Results must be program outputs or single numbers.
      if (!std::all_of(spec.stores.begin(), spec.stores.end(), [&](NodeId id) { return outputs_.count(id) || number(id); })) continue;
      bool given = false, computed = false, reads = false;
      for (NodeId id : spec.members)
        for (NodeId in : g_[id].in)
          each_source(g_, plan_, in, [&](NodeId source) {
            if (std::binary_search(spec.members.begin(), spec.members.end(), source)) return;
            (g_[source].op == Op::input ? given : computed) |= g_[source].op == Op::input || !number(source);
            reads |= g_[source].op != Op::literal;
          });
      // A tensor is best reduced while it is in the cache, unless the result is a single number.
      bool reduces = std::any_of(spec.members.begin(), spec.members.end(), [&](NodeId id) { return is_reduction(g_[id].op); });
      if (computed && reduces && !std::all_of(spec.stores.begin(), spec.stores.end(), number)) continue;
      if (reads && !given && !computed) continue;
      Similar& list = lists[{signature(spec), way[i]}];
      (computed ? list.computed : list.given).push_back(i);
    }
    return lists;
  }

  // Describes a group's arithmetic: groups with equal signatures do the same to different tensors.
  std::string signature(const GroupSpec& s) const {
    std::string text;
    for (NodeId id : s.members) {
      text += name(g_[id].op);
      for (NodeId in : g_[id].in) {
        auto it = std::lower_bound(s.members.begin(), s.members.end(), in);
        text += it == s.members.end() || *it != in ? std::string(" .") : " " + std::to_string(it - s.members.begin());
      }
      text += ';';
    }
    return text;
  }

  int64_t bytes(size_t group) const {
    int64_t n = 0;
    for (NodeId id : plan_.groups[group].specs[0].members) n = std::max(n, g_.type(id).bytes());
    return n;
  }

  OrderProblem merged(const std::vector<size_t>& launch) const {
    OrderProblem p = problem_;
    for (auto& [from, to] : p.edges) from = launch[from], to = launch[to];
    for (OrderProblem::Value& v : p.values) {
      v.maker = launch[v.maker];
      for (size_t& r : v.readers) r = launch[r];
    }
    return p;
  }

  int64_t peak_of(const std::vector<size_t>& launch) const {
    OrderProblem p = merged(launch);
    return peak_bytes(p, order_kernels(p));
  }

  const Graph& g_;
  const std::unordered_set<NodeId> outputs_;
  const OrderProblem& problem_;
  FusePlan& plan_;
  std::vector<size_t> launch_;  // of each group: the first group in its launch
  std::vector<char> shared_;    // groups whose launch has been decided
};

}  // namespace

void arrange_launches(const Graph& graph, std::span<const NodeId> outputs, FusePlan& plan) {
  Launches launches(graph, outputs, plan);
  if (plan.merged) launches.share();
  launches.arrange();
}

}  // namespace ridge
