#include "measure/thread_choice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "machine/utilisation.h"

namespace ridge {
namespace {

// Two threads on one core share its units: a first guess of what each gets. Helping corrects it while a task runs.
constexpr double kSiblingSpeed = 0.6;
// A larger team must be faster by this much: it takes cores from others, and smaller differences are noise.
constexpr double kWorthMore = 1.03;
// A fractional CPU of a quota is worth one more thread if it adds this much.
constexpr double kWorthFraction = 1.15;
// From this many cores on, half of them may be enough to saturate memory bandwidth.
constexpr int kTryHalf = 8;
constexpr int kMaxThreads = 4096;

bool contains(const std::vector<int>& list, int x) { return std::find(list.begin(), list.end(), x) != list.end(); }

// One usable core: its hardware threads and its location.
struct Seat {
  std::vector<int> cpus;
  std::array<int, 3> place{};  // package, NUMA node, cluster
};

struct Pool {  // cores of one kind
  std::string name;
  double speed = 1;
  std::vector<Seat> seats;

  int cores() const { return int(seats.size()); }
  int threads() const {
    int n = 0;
    for (const Seat& s : seats) n += int(s.cpus.size());
    return n;
  }
};
using Pools = std::vector<Pool>;  // fastest first

Pools pools_of(const Machine& machine) {
  std::map<int, const Core*> core_of;
  for (const Core& core : machine.topology.cores)
    for (int cpu : core.cpus) core_of[cpu] = &core;
  Pools pools;
  for (const CoreKind& kind : machine.usable) {
    Pool& pool = pools.emplace_back(Pool{kind.name, kind.speed > 0 ? kind.speed : 1, {}});
    for (int cpu : kind.cpus) {
      Seat& seat = pool.seats.emplace_back(Seat{{cpu}});
      auto found = core_of.find(cpu);
      if (found == core_of.end()) continue;
      const Core& core = *found->second;
      seat.place = {core.package, core.numa_node, core.cluster};
      for (int sibling : core.cpus)
        if (sibling != cpu && contains(kind.siblings, sibling)) seat.cpus.push_back(sibling);
    }
  }
  return pools;
}

int cores_in(const Pools& pools) {
  int n = 0;
  for (const Pool& p : pools) n += p.cores();
  return n;
}

int threads_in(const Pools& pools) {
  int n = 0;
  for (const Pool& p : pools) n += p.threads();
  return n;
}

// The pools without the cores that `wanted` rejects.
template <class Wanted>
Pools only(const Pools& pools, Wanted wanted) {
  Pools left;
  for (const Pool& pool : pools) {
    Pool part{pool.name, pool.speed, {}};
    for (const Seat& s : pool.seats)
      if (wanted(s)) part.seats.push_back(s);
    if (part.cores()) left.push_back(std::move(part));
  }
  return left;
}

// The fastest n cores. Within one kind, compact takes neighbours, which share caches, and spread takes from each socket and cluster in turn.
Pools fastest(const Pools& pools, int n, Affinity affinity) {
  Pools picked;
  for (const Pool& pool : pools) {
    if (n <= 0) break;
    Pool part = pool;
    if (affinity == Affinity::spread) {
      std::map<std::array<int, 3>, int> met;
      std::vector<std::tuple<int, int, Seat>> order;  // how many of its cluster came before, then listed order
      for (Seat& s : part.seats) order.emplace_back(met[s.place]++, int(order.size()), s);
      std::sort(order.begin(), order.end(),
                [](const auto& a, const auto& b) { return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b)); });
      for (size_t i = 0; i < order.size(); ++i) part.seats[i] = std::move(std::get<2>(order[i]));
    }
    part.seats.resize(size_t(std::min(n, part.cores())));
    n -= part.cores();
    picked.push_back(std::move(part));
  }
  return picked;
}

// "6 P-cores × 2 threads + 8 E-cores"; the kind is omitted if the machine has only one.
std::string label_of(const Pools& team, int siblings, bool kinds) {
  std::string text;
  for (const Pool& pool : team) {
    std::string kind;
    if (kinds) kind = fmt::format("{}-", short_kind(pool.name));
    text += fmt::format("{}{} {}core{}", text.empty() ? "" : " + ", pool.cores(), kind, pool.cores() == 1 ? "" : "s");
    const int doubled = std::min(siblings, pool.threads() - pool.cores());
    siblings -= doubled;
    if (doubled && pool.threads() == pool.cores() * int(pool.seats[0].cpus.size()) && doubled == pool.threads() - pool.cores())
      text += fmt::format(" × {} threads", pool.seats[0].cpus.size());
    else if (doubled)
      text += fmt::format(" with {} second threads", doubled);
  }
  return text;
}

// A team of one thread per core plus `siblings` more, on the fastest cores first. Fills in cpus and speeds, which are dropped if threads are not pinned.
TeamOptions team_of(const Pools& pools, int siblings) {
  TeamOptions team;
  for (const Pool& pool : pools) {
    std::vector<int> second;
    std::vector<double> speeds;
    std::vector<int> first;
    for (const Seat& seat : pool.seats) {
      const int more = std::min(siblings, int(seat.cpus.size()) - 1);
      siblings -= more;
      first.push_back(seat.cpus[0]);
      speeds.push_back(more > 0 ? pool.speed * kSiblingSpeed : pool.speed);
      second.insert(second.end(), seat.cpus.begin() + 1, seat.cpus.begin() + 1 + more);
    }
    speeds.insert(speeds.end(), second.size(), pool.speed * kSiblingSpeed);
    team.cpus.insert(team.cpus.end(), first.begin(), first.end());
    team.cpus.insert(team.cpus.end(), second.begin(), second.end());
    team.speeds.insert(team.speeds.end(), speeds.begin(), speeds.end());
  }
  team.threads = int(team.cpus.size());
  return team;
}

int second_threads(const Pools& pools) { return threads_in(pools) - cores_in(pools); }

// The candidates, and the steps that choose among them.
struct Choosing {
  const Machine& machine;
  const ThreadRequest& request;
  Pools pools;          // cores available to the team
  bool shared = false;  // other processes compute on some of them
  ThreadChoice choice;

  double quota() const {
    const double q = machine.limits.cpu_quota;
    return q > 0 && q < threads_in(pools) ? q : 0;
  }

  bool kinds() const { return machine.usable.size() > 1; }

  Affinity affinity_for(const Pools& team, int siblings) const {
    if (!machine.topology.can_pin) return Affinity::none;
    if (request.affinity != Affinity::automatic) return request.affinity;
    // Speeds differ, or some cores must be avoided, or memory is local to the core that touches it first.
    const bool some = cores_in(pools) < machine.cores() || machine.topology.numa_nodes > 1;
    return team.size() > 1 || siblings > 0 || some ? Affinity::compact : Affinity::none;
  }

  ThreadCandidate candidate(const Pools& team, int siblings) const {
    ThreadCandidate c{label_of(team, siblings, kinds()), team_of(team, siblings)};
    const bool even = std::equal(c.team.speeds.begin() + 1, c.team.speeds.end(), c.team.speeds.begin());
    const bool pinned = affinity_for(team, siblings) != Affinity::none;
    if (!pinned) c.team.cpus.clear();
    if (!pinned || even) c.team.speeds.clear();
    c.team.wait = wait_for(c.team.threads);
    return c;
  }

  Wait wait_for(int threads) const {
    if (request.wait != Wait::automatic) return request.wait;
    const bool crowded = threads > threads_in(pools) || (quota() > 0 && threads + 1 > quota());
    return shared || crowded || request.gpu_feed > 0 ? Wait::passive : Wait::active;
  }

  void decide(const Pools& team, int siblings, std::string by, std::string reason) {
    const ThreadCandidate c = candidate(team, siblings);
    choice.team = c.team, choice.label = c.label, choice.affinity = affinity_for(team, siblings);
    choice.decided_by = std::move(by), choice.reason = std::move(reason);
  }

  void explicit_number(int n) {
    const Pools cores = fastest(pools, n, request.affinity);
    const int siblings = std::min(n - cores_in(cores), second_threads(cores));
    decide(cores, siblings, request.source, fmt::format("{} asked for by {}", n, request.source));
    if (n > cores_in(cores) + siblings) {
      choice.team = {.threads = n, .wait = wait_for(n)};
      choice.affinity = Affinity::none;
      choice.remarks.push_back(
          fmt::format("{} on {}: they take turns and sleep while they wait", counted(n, "thread"), counted(threads_in(pools), "usable processor")));
    }
  }

  // Measuring would take several of the quota's 100 ms periods, but its effect is known.
  void under_quota() {
    const double q = quota();
    const int low = int(q + 1e-9), high = int(std::ceil(q - 1e-9));
    const bool round_up = low < 1 || q / low >= kWorthFraction;
    const int n = std::min(std::max(round_up ? high : low, 1), cores_in(pools));
    std::string reason = fmt::format("a quota of {:.2f} CPUs: ", q);
    if (low < 1 || low == high)
      reason += fmt::format("{} use{} all of it", n == 1 ? "one thread" : fmt::format("{} threads", n), n == 1 ? "s" : "");
    else if (round_up)
      reason += fmt::format("{} threads use all of it, {} would use {}", n, low == 1 ? "one" : std::to_string(low), low);
    else
      reason += fmt::format("one more thread than {} would add {:.0f} % and cause all of them to be stopped in every period", n, 100 * (q / low - 1));
    if (wait_for(n) == Wait::passive) reason += "; they sleep while they wait, as spinning would use it up";
    decide(fastest(pools, n, request.affinity), 0, "default", reason);
    if (low >= 1 && low != high) {
      const int other = round_up ? low : high;
      choice.runner_up = fmt::format("{} thread{}, {:.2f} of {:.2f} CPUs", other, other == 1 ? "" : "s", std::min(double(other), q), q);
    }
  }

  void feed_gpu() {
    const double limit = quota() > 0 ? quota() : double(cores_in(pools));
    const int n = std::max(1, int(std::min(std::ceil(limit), 1 + std::ceil(request.gpu_feed))));
    decide(fastest(pools, n, request.affinity), 0, "default",
           fmt::format("a GPU does the work: one thread to drive it and {:.0f} for the {:.2f} CPUs that feeding it takes", std::ceil(request.gpu_feed),
                       request.gpu_feed));
  }

  void warn_of_quota() {
    if (quota() > 0 && choice.team.threads > std::ceil(quota()))
      choice.remarks.push_back(fmt::format("{} threads under a quota of {:.2f} CPUs are stopped for a part of the time; {:.0f} can use all of it",
                                           choice.team.threads, quota(), std::ceil(quota())));
  }

  // Releases the slots that the team does not use, and reports cores that it shares by request.
  void claim_slots(CoreSlots& slots) {
    std::vector<int> cores = choice.team.cpus;
    if (cores.empty())  // not pinned: any cores, as many as the team needs
      for (const Pool& pool : fastest(pools, choice.team.threads, Affinity::compact))
        for (const Seat& s : pool.seats) cores.push_back(s.cpus[0]);
    slots.keep(cores);
    const auto taken = std::count_if(cores.begin(), cores.end(), [&](int cpu) { return contains(slots.foreign(), cpu); });
    if (!taken || shared) return;
    if (request.wait == Wait::automatic) choice.team.wait = Wait::passive;
    choice.remarks.push_back(
        fmt::format("{} of the cores asked for {} in use by other Ridge processes; threads sleep while they wait", taken, taken == 1 ? "is" : "are"));
  }

  void automatic(const MeasureTeams& measure) {
    std::vector<std::pair<Pools, int>> teams;
    Pools front;
    for (const Pool& pool : pools) front.push_back(pool), teams.push_back({front, 0});
    const size_t plain = teams.size() - 1;  // every core, one thread each
    const Pools first{pools[0]};
    if (second_threads(pools)) teams.push_back({pools, second_threads(pools)});
    if (pools.size() > 1 && second_threads(first)) teams.push_back({first, second_threads(first)});
    // More candidates are worth measuring only if a measurement is made anyway.
    if (teams.size() > 1 && first[0].cores() >= kTryHalf) teams.push_back({fastest(first, first[0].cores() / 2, Affinity::spread), 0});
    if (teams.size() == 1) {
      decide(pools, 0, "default", fmt::format("{} of one kind, one thread each", label_of(pools, 0, false)));
      return;
    }

    std::vector<TeamOptions> options;
    for (const auto& [team, siblings] : teams) {
      choice.candidates.push_back(candidate(team, siblings));
      options.push_back(choice.candidates.back().team);
    }
    std::vector<double> rates = measure && request.measure ? measure(options) : std::vector<double>{};
    rates.resize(teams.size());
    if (std::any_of(rates.begin(), rates.end(), [](double r) { return !(r > 0 && std::isfinite(r)); })) {
      decide(teams[plain].first, 0, "default", "one thread on each core, by topology; not measured");
      return;
    }
    const double best = *std::max_element(rates.begin(), rates.end());
    size_t chosen = teams.size(), second = teams.size();
    for (size_t i = 0; i < teams.size(); ++i)
      if (rates[i] * kWorthMore >= best && (chosen == teams.size() || options[i].threads < options[chosen].threads)) chosen = i;
    std::string reason;
    for (size_t i = 0; i < teams.size(); ++i) {
      if (i != chosen && (second == teams.size() || rates[i] > rates[second])) second = i;
      choice.candidates[i].throughput = rates[i] / rates[0];
      reason += fmt::format("{}{} {:.2f}×", i ? ", " : "measured: ", choice.candidates[i].label, rates[i] / rates[0]);
    }
    decide(teams[chosen].first, teams[chosen].second, "measured", reason);
    choice.runner_up = fmt::format("{}: {:.2f}×", choice.candidates[second].label, rates[second] / rates[chosen]);
  }
};

// Avoids other processes' cores if any others are free.
void respect_slots(Choosing& c, const CoreSlots& slots, bool automatic) {
  if (!slots.usable()) c.choice.remarks.push_back(slots.remark());
  const size_t others = slots.foreign().size(), all = others + slots.held().size();
  if (!others) return;
  if (automatic && !slots.held().empty()) {
    c.pools = only(c.pools, [&](const Seat& s) { return contains(slots.held(), s.cpus[0]); });
    c.choice.remarks.push_back(fmt::format("{} of {} cores {} in use by other Ridge processes; this one takes the {} free one{}", others, all,
                                           others == 1 ? "is" : "are", all - others, all - others == 1 ? "" : "s"));
  } else if (automatic) {
    c.shared = true;
    c.choice.remarks.push_back(fmt::format("{} in use by other Ridge processes; this one shares {}, and its threads sleep while they wait",
                                           all == 1 ? "the only core is" : fmt::format("all {} cores are", all), all == 1 ? "it" : "them"));
  } else {
    // An explicit request is honoured: free cores first.
    Pools ordered = c.pools;
    for (Pool& pool : ordered) std::stable_partition(pool.seats.begin(), pool.seats.end(), [&](const Seat& s) { return contains(slots.held(), s.cpus[0]); });
    c.pools = std::move(ordered);
  }
}

}  // namespace

std::string_view name(Affinity affinity) {
  constexpr std::string_view names[] = {"auto", "none", "compact", "spread"};
  return names[int(affinity)];
}

std::string_view name(Wait wait) {
  constexpr std::string_view names[] = {"auto", "active", "passive"};
  return names[int(wait)];
}

Affinity parse_affinity(std::string_view text) {
  for (Affinity a : {Affinity::automatic, Affinity::none, Affinity::compact, Affinity::spread})
    if (text == name(a)) return a;
  fail(ErrorCode::usage, "[threads] affinity \"{}\" is not known; use auto, none, compact or spread", text);
}

Wait parse_wait(std::string_view text) {
  for (Wait w : {Wait::automatic, Wait::active, Wait::passive})
    if (text == name(w)) return w;
  fail(ErrorCode::usage, "[threads] wait \"{}\" is not known; use auto, active or passive", text);
}

ThreadRequest environment_threads() {
  ThreadRequest request;
  auto value = [](const char* variable) {
    const char* text = std::getenv(variable);
    return std::string(text ? text : "");
  };
  if (std::string text = value("RIDGE_THREADS"); !text.empty()) {
    request.threads = text, request.source = "RIDGE_THREADS";
  } else if (text = value("OMP_NUM_THREADS"); !text.empty()) {
    // Another program's variable: a list is for nested teams, which Ridge does not have.
    int n = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || (end != text.data() + text.size() && *end != ',') || n < 1 || n > kMaxThreads)
      fail(ErrorCode::usage, "[threads] OMP_NUM_THREADS=\"{}\" is not a number of threads from 1 to {}", text, kMaxThreads);
    request.threads = std::to_string(n), request.source = "OMP_NUM_THREADS";
  }
  if (std::string text = value("RIDGE_AFFINITY"); !text.empty()) request.affinity = parse_affinity(text);
  if (std::string text = value("RIDGE_WAIT"); !text.empty()) request.wait = parse_wait(text);
  const std::string tune = lower_case(value(value("RIDGE_OPTIMIZE_PERF").empty() ? "OPTIMIZE_PERF" : "RIDGE_OPTIMIZE_PERF"));
  request.measure = tune != "false" && tune != "no" && tune != "off" && tune != "0";
  if (request.measure && !tune.empty() && tune != "true" && tune != "yes" && tune != "on" && tune != "1")
    fail(ErrorCode::usage, "[threads] OPTIMIZE_PERF=\"{}\" is neither true nor false", tune);
  return request;
}

std::vector<int> usable_cores(const Machine& machine) {
  std::vector<int> cores;
  for (const CoreKind& kind : machine.usable) cores.insert(cores.end(), kind.cpus.begin(), kind.cpus.end());
  return cores;
}

ThreadChoice choose_threads(const Machine& machine, const ThreadRequest& request, const MeasureTeams& measure, CoreSlots* slots) {
  const std::string& threads = request.threads;
  int number = 0;
  auto [end, error] = std::from_chars(threads.data(), threads.data() + threads.size(), number);
  const bool is_number = error == std::errc() && end == threads.data() + threads.size();
  if (is_number ? number < 1 || number > kMaxThreads : threads != "auto" && threads != "performance" && threads != "all")
    fail(ErrorCode::usage, "[threads] threads \"{}\" ({}) is not known; use auto, performance, all or a number from 1 to {}", threads, request.source,
         kMaxThreads);

  Choosing c{machine, request, pools_of(machine), false, {}};
  c.choice.remarks = request.remarks;
  if (slots) respect_slots(c, *slots, threads == "auto");
  if (request.affinity > Affinity::none && !machine.topology.can_pin)
    c.choice.remarks.push_back(fmt::format("affinity={} has no effect: this system cannot pin threads to cores", name(request.affinity)));

  if (is_number)
    c.explicit_number(number);
  else if (threads == "performance")
    c.decide({c.pools[0]}, 0, request.source, fmt::format("one thread on each core of the fastest kind, asked for by {}", request.source));
  else if (threads == "all")
    c.decide(c.pools, second_threads(c.pools), request.source, fmt::format("every hardware thread, asked for by {}", request.source));
  else if (request.gpu_feed > 0)
    c.feed_gpu();
  else if (c.quota() > 0 && std::ceil(c.quota() - 1e-9) <= cores_in(c.pools))
    c.under_quota();
  else
    c.automatic(measure);

  if (threads != "auto") c.warn_of_quota();
  if (slots) c.claim_slots(*slots);
  return std::move(c.choice);
}

std::string ThreadChoice::text() const {
  const int n = team.threads;
  return fmt::format("{} thread{} on {}, {}, {} ({})", n, n == 1 ? "" : "s", label,
                     affinity == Affinity::none ? "not pinned" : fmt::format("pinned {}", name(affinity)),
                     team.wait == Wait::passive ? "sleeping while they wait" : "spinning while they wait", reason);
}

}  // namespace ridge
