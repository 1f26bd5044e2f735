// Generated sequences depend on their number only, have the published statistics, and their best errors are right. Batches repeat them in an order by seed.
#include "data/series.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/svg.h"
#include "base/text.h"
#include "data/series_picture.h"
#include "machine/expect_error.h"

namespace ridge {
namespace {

TEST(GeneratedSeries, DependOnTheirNumberOnly) {
  for (const std::string& name : generated_names()) {
    SCOPED_TRACE(name);
    const auto series = generate_series(name);
    const SeriesForm& f = series->form();
    SeriesSample a(f), b(f), other(f);
    series->fill(SeriesPart::train, 7, other);
    series->fill(SeriesPart::test, 3, b);
    series->fill(SeriesPart::test, 7, other), series->fill(SeriesPart::test, 3, a);
    EXPECT_EQ(std::tie(a.x, a.dt, a.y, a.weight, a.label, a.last), std::tie(b.x, b.dt, b.y, b.weight, b.label, b.last));
    EXPECT_NE(a.x, other.x);
    generate_series(name, 0, 2)->fill(SeriesPart::test, 3, other);
    EXPECT_NE(a.x, other.x) << "another seed";
    bool target = false;
    for (const float w : a.weight) target |= w > 0;
    for (const int64_t label : a.label) target |= label >= 0;
    EXPECT_TRUE(target);
    for (const auto* values : {&a.x, &a.dt, &a.y})
      for (const float v : *values) ASSERT_TRUE(std::isfinite(v) && std::abs(v) < 20) << v;
  }
  EXPECT_TRUE(mentions(error_of([] { generate_series("sin"); }).what(), "did you mean 'sine'"));
  EXPECT_TRUE(mentions(error_of([] { generate_series("xor", 2); }).what(), "length=2"));
}

// The events, undone, give back a stream of bits whose parity is the class; its length is uniform in 2 … pad - 1.
TEST(GeneratedSeries, XorIsTheEventCodedParity) {
  const auto series = generate_series("xor");
  SeriesSample s(series->form());
  std::map<int64_t, int> lengths;
  int odd = 0;
  constexpr int kSamples = 3000;
  for (int n = 0; n < kSamples; ++n) {
    series->fill(SeriesPart::train, n, s);
    int64_t steps = 0, last = -1, label = -1, ones = 0;
    for (int64_t t = 0; t < 32; ++t) {
      const int64_t elapsed = std::lround(s.dt[size_t(t)] * 32);
      if (elapsed == 0) break;
      const auto bit = int64_t(s.x[size_t(t)]);
      ASSERT_EQ(label, -1) << "only the last event has a class";
      // The bits since the event before repeat its bit, up to the new one.
      ones += t == 0 ? bit * elapsed : last * (elapsed - 1) + bit;
      steps += elapsed, last = bit, label = s.label[size_t(t)];
    }
    ASSERT_EQ(label, ones % 2) << n;
    ++lengths[steps], odd += int(label);
  }
  EXPECT_EQ(lengths.begin()->first, 2);
  EXPECT_EQ(lengths.rbegin()->first, 31);
  for (const auto& [length, count] : lengths) EXPECT_NEAR(count, kSamples / 30, 55) << length;
  EXPECT_NEAR(odd, kSamples / 2, 150);
  EXPECT_EQ(series->count(SeriesPart::train), 100'000);
  EXPECT_EQ(series->count(SeriesPart::test), 10'000);
}

// Without times, a model sees the first bit, the number of events and whether the last one repeats its bit: at most 55.0 % of the parities can be guessed, and
// 53.9 % if the last event is not shown either.
TEST(GeneratedSeries, XorWithoutTimesIsAlmostChance) {
  for (const auto& [pad, limit, unseen] : {std::tuple(32, 0.5500, 0.5389), std::tuple(16, 0.6063, 0.5828)}) {
    // Streams by (first bit, runs, whether the current run is longer than one bit, parity), each with its probability.
    using Seen = std::tuple<int, int, bool>;
    std::map<Seen, std::array<double, 2>> streams, seen;
    for (const int bit : {0, 1}) streams[{bit, 1, false}][size_t(bit)] = 0.5;
    for (int length = 2; length < pad; ++length) {
      std::map<Seen, std::array<double, 2>> next;
      for (const auto& [state, p] : streams) {
        const auto [first, runs, longer] = state;
        const int bit = (first + runs - 1) % 2;
        for (const int parity : {0, 1})
          for (const int drawn : {0, 1}) {
            const Seen to = drawn == bit ? Seen{first, runs, true} : Seen{first, runs + 1, false};
            next[to][size_t((parity + drawn) % 2)] += 0.5 * p[size_t(parity)];
          }
      }
      streams = std::move(next);
      for (const auto& [state, p] : streams)
        for (const int parity : {0, 1}) seen[state][size_t(parity)] += p[size_t(parity)] / (pad - 2);
    }
    auto right = [](const auto& states) {
      double sum = 0;
      for (const auto& [state, p] : states) sum += std::max(p[0], p[1]);
      return sum;
    };
    EXPECT_NEAR(right(seen), limit, 1e-4) << "pad " << pad;
    std::map<std::pair<int, int>, std::array<double, 2>> without_rest;
    for (const auto& [state, p] : seen)
      for (const int parity : {0, 1}) without_rest[{std::get<0>(state), std::get<1>(state)}][size_t(parity)] += p[size_t(parity)];
    EXPECT_NEAR(right(without_rest), unseen, 1e-4) << "pad " << pad;
  }
}

// The Kalman filter knows the oscillator: its errors are the noise and a little uncertainty, and no linear predictor of the last values reaches it.
TEST(GeneratedSeries, KalmanIsTheFloorOfIrregular) {
  const auto series = generate_series("irregular");
  const double best = series->best().value();
  EXPECT_GT(best, 0.09) << "the noise alone";
  EXPECT_LT(best, 0.14);
  const SeriesBaselines b = series_baselines(*series);
  EXPECT_GT(b.linear.value(), 1.3 * best);
  EXPECT_GT(b.last, b.linear.value());
}

// y(t) of every forecast is x(t + 1), unless frames are missing.
TEST(GeneratedSeries, ForecastsAreTheNextStep) {
  for (const char* name : {"sine", "irregular", "lorenz"}) {
    const auto series = generate_series(name, 12);
    SeriesSample s(series->form());
    series->fill(SeriesPart::validation, 5, s);
    const size_t n = series->form().inputs.size();
    for (size_t i = 0; i + n < s.x.size(); ++i) ASSERT_EQ(s.y[i], s.x[i + n]) << name;
  }
  const auto walker = generate_series("walker");
  SeriesSample s(walker->form());
  double gaps = 0;
  for (int n = 0; n < 20; ++n) {
    walker->fill(SeriesPart::train, n, s);
    for (const float dt : s.dt) gaps += dt - 1;
    for (size_t t = 0; t + 1 < 64; ++t)
      if (s.dt[t + 1] == 1) {
        ASSERT_EQ(s.y[t * 8], s.x[(t + 1) * 8]);
      }
  }
  EXPECT_NEAR(gaps / (20 * 64), 0.111, 0.03) << "a tenth of the frames is missing";
}

TEST(GeneratedSeries, BaselinesAreThoseOfTheProblem) {
  const SeriesBaselines adding = series_baselines(*generate_series("adding"), SeriesPart::test, 500);
  EXPECT_NEAR(adding.linear.value(), 1.0 / 6, 0.03) << "the variance of the sum: no linear model can use the marks";
  const SeriesBaselines copied = series_baselines(*generate_series("copy"), SeriesPart::test, 300);
  EXPECT_NEAR(copied.last, 0.4, 0.06) << "the last symbol is right itself, and a quarter of the others";
  EXPECT_GT(copied.linear.value(), 0.95) << "each symbol is at a fixed distance";
  const SeriesBaselines parity = series_baselines(*generate_series("xor"), SeriesPart::test, 2000);
  EXPECT_LT(parity.linear.value(), 0.6);
  EXPECT_LT(parity.last, 0.6);
}

struct SeriesBatch {
  SeriesBatch(const BatchSource& source, int64_t number) {
    std::vector<std::byte*> places;
    for (const Type& t : source.types()) tensors.emplace_back(size_t(t.bytes()));
    for (auto& t : tensors) places.push_back(t.data());
    source.fill(number, places);
  }
  std::vector<std::vector<std::byte>> tensors;
};

TEST(SeriesBatches, AreAPermutationThatDependsOnTheSeed) {
  const auto series = generate_series("xor", 16);
  const auto train = training_series(*series, 32, 1), again = training_series(*series, 32, 1), other = training_series(*series, 32, 2);
  EXPECT_EQ(SeriesBatch(*train, 5).tensors, SeriesBatch(*again, 5).tensors);
  EXPECT_NE(SeriesBatch(*train, 5).tensors, SeriesBatch(*train, 6).tensors);
  EXPECT_NE(SeriesBatch(*train, 5).tensors, SeriesBatch(*other, 5).tensors);
  std::vector<std::byte*> places;
  SeriesBatch part(*train, 5);
  for (auto& t : part.tensors) std::fill(t.begin(), t.end(), std::byte(0)), places.push_back(t.data());
  train->fill_part(5, 8, 3, places);
  EXPECT_EQ(std::memcmp(part.tensors[0].data(), SeriesBatch(*train, 5).tensors[0].data() + 8 * 16 * 4, 3 * 16 * 4), 0);
  const auto tests = ordered_series(*series, SeriesPart::test, 64, 100);
  EXPECT_EQ(tests->batches(), 2);
  EXPECT_EQ(tests->samples(1), 36);
  EXPECT_EQ(ordered_series(*series, SeriesPart::test, 64)->batches(), 157);
}

TEST(ConfusionTable, HasARowPerTrueClass) {
  EXPECT_EQ(confusion_table({"low", "a longer name"}, std::vector<int64_t>{3, 1, 0, 4}),
            (std::vector<std::string>{"truth \\ said      low a longe…", "low                 3        1", "a longer na…        0        4"}));
}

// Many classes are rows of a fixed width: a column for each would not fit a terminal.
TEST(ConfusionTable, OfManyClassesNamesTheMistakes) {
  std::vector<std::string> classes;
  for (int i = 0; i < 7; ++i) classes.push_back(fmt::format("class{}", i));
  std::vector<int64_t> counts(49, 0);
  for (size_t i = 0; i < 7; ++i) counts[i * 7 + i] = int64_t(10 * i);
  counts[2 * 7 + 5] = 4, counts[2 * 7 + 1] = 3;
  const std::vector<std::string> lines = confusion_table(classes, counts);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[3], "class2                 20        27  class5 (4)");
  EXPECT_EQ(lines[7], "class6                 60        60");
  std::vector<std::string> many(20, "a class with quite a long name");
  std::vector<int64_t> wrong(400, 0);
  for (size_t i = 0; i < 20; ++i) wrong[i * 20 + (i + 1) % 20] = i == 19 ? 1000 : int64_t(i);
  const std::vector<std::string> most = confusion_table(many, wrong);
  ASSERT_EQ(most.size(), 14u);
  EXPECT_NE(most[12].find("(1000)"), std::string::npos) << most[12];
  EXPECT_EQ(most[13], "and 8 more classes with fewer mistakes; ridge eval --json has the whole table");
  for (const std::string& line : most) EXPECT_LE(display_width(line), 80) << line;
}

// Many columns: a forecast is described by the first ones and their number, and a picture says which it shows.
TEST(SeriesForm, AboutManyColumnsIsShort) {
  SeriesForm f;
  for (int i = 0; i < 60; ++i) f.outputs.push_back(fmt::format("column{}", i)), f.what += (i ? ", " : "") + f.outputs.back();
  f.what += " 1 step ahead";
  EXPECT_EQ(f.about(), "column0, column1, column2, column3, column4, column5, column6, column7, column8, column9, column10 and 49 more 1 step ahead");
  f.outputs = {"a", "b"}, f.what = "a, b 3 steps ahead";
  EXPECT_EQ(f.about(), f.what);
  const std::vector<SeriesPanel> panels(8, SeriesPanel{"a", {0, 1, 2}, {-0.05, 0.5, 1}, {-0.05, 0.5, 1}});
  const std::string picture = series_svg("t", "s", panels, {});
  EXPECT_NE(picture.find("the first 6 of 8 columns; s"), std::string::npos);
  EXPECT_EQ(picture.find(">-0<"), std::string::npos) << "a tick at zero";
  EXPECT_EQ(series_svg("t", "s", std::span(panels).first(6), {}).find("the first"), std::string::npos);
}

// The note where a forecast begins covers neither the name of the panel nor the edge.
TEST(SeriesPicture, TheNoteHasRoom) {
  const std::vector<SeriesPanel> panels(1, SeriesPanel{"temperature", {0, 1, 2, 50, 98, 99, 100}, {0, 1, 0, 1, 0, 1, 0}, {0, 1, 0, 1, 0, 1, 0}});
  auto place = [&](double from) {
    const std::string picture = series_svg("t", "s", panels, {}, from), text = picture.substr(0, picture.find(">free running"));
    return std::stod(text.substr(text.rfind(" x=\"") + 4));
  };
  EXPECT_GT(place(1), 72 + svg::text_width("temperature", 13, true));
  EXPECT_NEAR(place(50), 72 + 860 / 2, 0.1);
  EXPECT_LT(place(99), 932 - svg::text_width("free running from here", 12) + 0.1);
}

}  // namespace
}  // namespace ridge
