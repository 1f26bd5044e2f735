// The keys and presets of recurrent models.
#include "config/key.h"
#include "config/presets.h"
#include "tasks/circuits/task.h"

namespace ridge {
namespace config::circuit_keys {

using enum Type;

constexpr std::string_view kCircuitGroup = "Circuit (cfc)", kSequences = "Sequences (cfc)", kUse = "plan, train";

// clang-format off
constexpr Key kCircuitKeys[] = {
  {.name = "preset", .group = kCircuitGroup, .type = choice, .initial = "xor", .help = "a data set with a recipe that learns it, chosen by data if that is set; table: for data of your own; individual keys override it",
   .words = "xor|sine|irregular|lorenz|adding|copy|walker|table", .used_by = kUse},
  {.name = "cell", .group = kCircuitGroup, .type = choice, .initial = "cfc", .help = "what is computed in a time step", .words = "cfc|ltc|eltc|ctrnn|node|ctgru|lstm|gru|mingru", .used_by = kUse},
  {.name = "mode", .group = kCircuitGroup, .type = choice, .initial = "default", .help = "form of a CfC cell", .words = "default|pure|no_gate", .used_by = kUse},
  {.name = "units", .group = kCircuitGroup, .type = integer, .initial = "auto", .help = "neurons per layer; auto: from the preset, or the wiring's", .words = "auto", .low = 1, .high = 1 << 16,
   .aliases = "hidden hidden_size", .used_by = kUse},
  {.name = "wiring", .group = kCircuitGroup, .type = text, .initial = "", .help = "which neurons are connected, as ridge wiring takes it: full:N, random:N,OUT,SPARSITY, auto:N,OUT, ncp:…; empty: dense", .used_by = kUse},
  {.name = "mixed_memory", .group = kCircuitGroup, .type = boolean, .initial = "false", .help = "an LSTM before each step of the cell, for long-term memory", .aliases = "mixed", .used_by = kUse},
  {.name = "layers", .group = kCircuitGroup, .type = integer, .initial = "1", .help = "stacked layers", .low = 1, .high = 64, .used_by = kUse},
  {.name = "bidirectional", .group = kCircuitGroup, .type = boolean, .initial = "false", .help = "also read sequences from their end", .used_by = kUse},
  {.name = "backbone_units", .group = kCircuitGroup, .type = integer, .initial = "auto", .help = "width of a dense CfC's hidden layers; auto: 128", .words = "auto", .low = 1, .high = 1 << 16, .used_by = kUse},
  {.name = "backbone_layers", .group = kCircuitGroup, .type = integer, .initial = "auto", .help = "number of these layers; auto: 1", .words = "auto", .low = 0, .high = 64, .used_by = kUse},
  {.name = "activation", .group = kCircuitGroup, .type = choice, .initial = "lecun_tanh", .help = "of these layers", .words = "lecun_tanh|tanh|relu|silu|gelu", .used_by = kUse},
  {.name = "dropout", .group = kCircuitGroup, .type = real, .initial = "0", .help = "fraction dropped after these layers, except the first", .high = 1, .below_high = true, .aliases = "backbone_dropout", .used_by = kUse},
  {.name = "unfolds", .group = kCircuitGroup, .type = integer, .initial = "auto", .help = "solver steps per time step of cells that integrate an equation; auto: 6, for eltc 4", .words = "auto", .low = 1, .high = 1000,
   .aliases = "ode_unfolds", .used_by = kUse},
  {.name = "solver", .group = kCircuitGroup, .type = choice, .initial = "auto", .help = "solver of eltc, ctrnn and node", .words = "auto|euler|rk4|semi_implicit", .used_by = kUse},
  {.name = "implicit_constraints", .group = kCircuitGroup, .type = boolean, .initial = "true", .help = "positive parameters of an LTC by softplus; false: every update sets negative ones to 0", .used_by = kUse},
  {.name = "input_mapping", .group = kCircuitGroup, .type = choice, .initial = "affine", .help = "what an LTC does to each input before its synapses", .words = "affine|linear|none", .used_by = kUse},
  {.name = "output_mapping", .group = kCircuitGroup, .type = choice, .initial = "affine", .help = "what an LTC does to each output neuron", .words = "affine|linear|none", .used_by = kUse},
  {.name = "time", .group = kCircuitGroup, .type = choice, .initial = "auto", .help = "how cells learn the time that a step covers: as timespan, as one more input, both or not at all; auto: as timespan if the cell uses it and the data has times, else as input",
   .words = "auto|span|input|both|none", .used_by = kUse},
  {.name = "time_scale", .group = kCircuitGroup, .type = real, .initial = "1", .help = "factor of that time, for data whose steps are much shorter or longer than 1", .high = 1e6, .above_low = true, .used_by = kUse},
  {.name = "residual", .group = kCircuitGroup, .type = boolean, .initial = "false", .help = "forecasts are changes, added to the last values", .used_by = kUse},
  {.name = "length", .group = kSequences, .type = integer, .initial = "auto", .help = "steps of a generated sequence; for xor the padding: bits are fewer", .words = "auto", .low = 2, .high = 4096, .aliases = "pad", .used_by = kUse},
  {.name = "inputs", .group = kSequences, .type = list, .initial = "", .help = "columns of a table that the model sees; empty: all numbers", .used_by = kUse},
  {.name = "targets", .group = kSequences, .type = list, .initial = "", .help = "columns to forecast; empty: the inputs", .used_by = kUse},
  {.name = "class_column", .group = kSequences, .type = text, .initial = "", .help = "column of classes to predict instead of a forecast", .used_by = kUse},
  {.name = "time_column", .group = kSequences, .type = text, .initial = "", .help = "column of times, numbers or dates; empty: rows are evenly spaced", .used_by = kUse},
  {.name = "decimal", .group = kSequences, .type = choice, .initial = "auto", .help = "decimal mark of a table's numbers; auto: as the numbers show; the other mark may separate thousands", .words = "auto|point|comma", .used_by = kUse},
  {.name = "date_order", .group = kSequences, .type = choice, .initial = "auto", .help = "of dates such as 03/04/2026: day or month first; auto: as a day above 12 shows", .words = "auto|dmy|mdy", .used_by = kUse},
  {.name = "sequence_column", .group = kSequences, .type = text, .initial = "", .help = "column that names the sequence of a row; empty: a file is one sequence", .used_by = kUse},
  {.name = "window", .group = kSequences, .type = integer, .initial = "64", .help = "steps that the model sees at once", .low = 1, .high = 1 << 16, .used_by = kUse},
  {.name = "stride", .group = kSequences, .type = integer, .initial = "auto", .help = "rows between the starts of two windows; auto: a quarter of a window", .words = "auto", .low = 1, .high = 1 << 16, .used_by = kUse},
  {.name = "horizon", .group = kSequences, .type = integer, .initial = "1", .help = "steps ahead to forecast", .low = 1, .high = 1 << 16, .used_by = kUse},
  {.name = "split", .group = kSequences, .type = choice, .initial = "auto", .help = "what is kept for validation and tests: the last rows of each sequence, or whole sequences; auto: sequences if there are ten, or if each has one class", .words = "auto|time|sequence", .used_by = kUse},
  {.name = "validation_share", .group = kSequences, .type = real, .initial = "0.1", .help = "of the rows or sequences", .high = 0.9, .above_low = true, .used_by = kUse},
  {.name = "test_share", .group = kSequences, .type = real, .initial = "0.15", .help = "of the rows or sequences", .high = 0.9, .above_low = true, .used_by = kUse},
};
// clang-format on

// Each reaches what docs/benchmarks.md says. xor: the sizes published for this data set (CfC with an LSTM). Its times are in units of 32 bits; without a scale,
// telling 3 bits from 4 takes very large weights. Without mixed memory, Muon's accuracy varies little with the seed, AdamW's by 1.5 %.
constexpr Preset kPresets[] = {
    {"xor",
     "data=xor units=64 mixed_memory=true backbone_units=128 activation=relu time=both time_scale=32 batch=128 steps=14000 optimizer=muon lr=2e-3 "
     "min_lr=1e-5 warmup=100 beta2=0.999 clip=0.25 weight_decay=0"},
    {"sine", "data=sine units=32 backbone_units=64 activation=tanh batch=64 steps=2000 lr=5e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"irregular", "data=irregular units=64 backbone_units=64 activation=tanh batch=64 steps=4000 lr=5e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"lorenz",
     "data=lorenz units=64 backbone_units=64 activation=silu residual=true batch=64 steps=3000 lr=5e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"adding",
     "data=adding units=64 mixed_memory=true backbone_units=64 activation=relu batch=64 steps=5000 lr=3e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"copy",
     "data=copy units=64 mixed_memory=true backbone_units=64 activation=relu batch=64 steps=4000 lr=3e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"walker",
     "data=walker units=64 backbone_units=128 activation=silu residual=true batch=64 steps=4000 lr=5e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0"},
    {"table", "units=64 backbone_units=64 activation=silu batch=64 steps=2000 lr=3e-3 min_lr=1e-5 warmup=50 beta2=0.99 weight_decay=0.01"},
};

}  // namespace config::circuit_keys

void register_circuit_keys() {
  config::register_keys(config::task_bit(kCircuitsName), "", config::circuit_keys::kCircuitKeys);
  config::register_presets("preset", config::circuit_keys::kPresets);
}

}  // namespace ridge
