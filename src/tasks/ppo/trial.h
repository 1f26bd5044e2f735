// What runs that differ in their seeds show together: whether and when each reached its target, and SLM-Lab's metrics of sessions and trials.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "train/task.h"

namespace ridge {

// The evaluations of one run, a session of SLM-Lab: mean return, and decisions and updates until then (from 1).
struct SessionCurve {
  std::vector<double> returns, decisions, updates;
};

// Of the strengths s_i = return_i − mean return of random actions. NaN where a sum to divide by is 0 or there are too few evaluations.
struct SessionMetrics {
  double total_reward_ma = 0;                                 // mean of the last 100 returns
  double strength = 0, max_strength = 0, final_strength = 0;  // mean, largest and last s_i
  double sample_efficiency = 0, training_efficiency = 0;      // Σ s_i ÷ t_i, divided by Σ s_i; t: decisions, updates
  double stability = 0;                                       // 1 − |Σ min(s_{i+1} − s_i, 0) ÷ Σ s_i|, the last s_i left out
};
SessionMetrics session_metrics(const SessionCurve& curve, double random_return);

// Over sessions j: 1 − 2 Σ_i sd_j(s_ij) ÷ Σ_i mean_j(s_ij); sd with n − 1. Where only one session has an evaluation i, it has a mean and no sd.
double consistency(std::span<const SessionCurve> sessions, double random_return);

RunsReport report_agents(std::span<const ExperimentRun> runs, int width);

}  // namespace ridge
