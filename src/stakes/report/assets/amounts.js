// What follows from the costs of too few and too many, and the quantiles of the test rows. Pure functions, for the page
// and for Node.
//
// Quantiles are one flat array, row by row, in order: quantiles[i * LEVELS + l], at the levels .01, .02, ... .99. As in
// Python, they are as many atoms wherever a mean is taken: of a hundredth each, and one and a half for the outermost.
// A hundredth at each end is an exponential tail, whose mean distance from the outermost is that of `tails`.
"use strict";

const Amounts = (() => {
  const LEVELS = 99;
  const WEIGHTS = Float64Array.from({ length: LEVELS }, (_, l) => (l === 0 || l === LEVELS - 1 ? 0.015 : 0.01));
  const BEYOND = 0.01; // of the outcomes are in each tail
  const FARTHEST = 1e-9; // the share that any smaller one is taken as
  const WEIGHT_FROM = new Float64Array(LEVELS + 1); // of the atoms from each level on
  for (let l = LEVELS - 1; l >= 0; l--) WEIGHT_FROM[l] = WEIGHT_FROM[l + 1] + WEIGHTS[l];

  // What is decided about: rows of quantiles with the sums that expected costs need, which of them each case has (its
  // own, unless told), and which numbers may be decided on, from `atLeast` to `top` in steps, if these are not null.
  function problem(quantiles, range, rows = null) {
    const count = quantiles.length / LEVELS;
    const above = new Float64Array(count * (LEVELS + 1)); // weighted sums of the atoms from each level on
    for (let i = 0; i < count; i++) {
      for (let l = LEVELS - 1; l >= 0; l--) {
        above[i * (LEVELS + 1) + l] = above[i * (LEVELS + 1) + l + 1] + WEIGHTS[l] * quantiles[i * LEVELS + l];
      }
    }
    return {
      quantiles, above, rows, cases: rows ? rows.length : count, step: range.step,
      atLeast: range.atLeast ?? -Infinity, top: range.top ?? Infinity, origin: range.atLeast ?? 0,
    };
  }

  // The mean distances of the outcomes beyond the lowest and the highest quantile from these.
  function tails(quantiles, row) {
    const at = (l) => quantiles[row * LEVELS + l];
    return [at(4) - at(0), at(LEVELS - 1) - at(LEVELS - 5)].map((width) => width / Math.log(5));
  }

  // E max(x - distance, 0) of an exponential x, from a distance of 0 on.
  const excess = (mean, distance) => (mean > 0 ? mean * Math.exp(-Math.max(distance, 0) / mean) : 0);

  // The quantile of one row: interpolated between levels, extrapolated beyond them.
  function quantile({ quantiles }, row, share) {
    let position = Math.min(Math.max(share * 100 - 1, 0), LEVELS - 1);
    if (Math.abs(position - Math.round(position)) < 1e-9) position = Math.round(position);
    const before = Math.min(Math.floor(position), LEVELS - 2);
    const low = quantiles[row * LEVELS + before];
    const high = quantiles[row * LEVELS + before + 1];
    const weight = position - before;
    const inside = weight < 0.5 ? low + weight * (high - low) : high - (1 - weight) * (high - low);
    const [lower, upper] = tails(quantiles, row);
    const [below, above] = [share, 1 - share].map((beyond) =>
      Math.log(BEYOND / Math.min(Math.max(beyond, FARTHEST), BEYOND)));
    return inside + upper * above - lower * below;
  }

  // What a number is expected to cost in one row: under E max(y - h, 0) + over E max(h - y, 0).
  function expectedCost({ quantiles, above }, row, h, under, over) {
    let [low, high] = [0, LEVELS]; // the first atom above h
    while (low < high) {
      const middle = (low + high) >> 1;
      if (quantiles[row * LEVELS + middle] > h) high = middle;
      else low = middle + 1;
    }
    const sums = row * (LEVELS + 1);
    const [lower, upper] = tails(quantiles, row);
    const beyond = excess(upper, h - quantiles[row * LEVELS + LEVELS - 1]) + excess(lower, quantiles[row * LEVELS] - h);
    const short = above[sums + low] - WEIGHT_FROM[low] * h + BEYOND * (beyond - lower);
    return under * short + over * (h - above[sums] - BEYOND * (upper - lower) + short);
  }

  // The number with the least expected cost in one row: the quantile, or the better of the two steps beside it.
  function decideRow(given, row, under, over) {
    const { step, atLeast, top, origin } = given;
    const inside = (h) => Math.min(Math.max(h, atLeast), top);
    const best = quantile(given, row, under / (under + over));
    if (step === null) return inside(best);
    const below = inside(origin + step * Math.floor((best - origin) / step + 1e-9));
    const next = inside(below + step);
    const [first, second] = [below, next].map((h) => expectedCost(given, row, h, under, over));
    return second < first ? next : below;
  }

  const one = (costs, i) => (costs.length === 1 ? costs[0] : costs[i]);

  // Decisions of all cases, and what each is expected to cost. Costs are one for all cases, or one for each.
  function decide(given, under, over) {
    const choice = new Float64Array(given.cases);
    const claimed = new Float64Array(given.cases);
    for (let i = 0; i < given.cases; i++) {
      const row = given.rows ? given.rows[i] : i;
      const [short, left] = [one(under, i), one(over, i)];
      choice[i] = decideRow(given, row, short, left);
      claimed[i] = expectedCost(given, row, choice[i], short, left);
    }
    return { choice, claimed };
  }

  function realisedCosts(choice, labels, under, over) {
    return choice.map((h, i) => one(under, i) * Math.max(labels[i] - h, 0) + one(over, i) * Math.max(h - labels[i], 0));
  }

  function sum(values) {
    let total = 0;
    for (const value of values) total += value;
    return total;
  }

  const mean = (values) => sum(values) / values.length;
  const coveredShare = (choice, labels) => mean(choice.map((h, i) => (labels[i] <= h ? 1 : 0)));

  // Where a difference passes through 0 on the way along `at`: places between, by halving, and its sign between them.
  function crossings(difference, at) {
    const sign = (value) => Math.sign(Math.abs(value) < 1e-9 ? 0 : value);
    const parts = [{ from: at[0], to: at[0], sign: sign(difference(at[0])) }];
    for (let place = 1; place < at.length; place++) {
      const last = parts.at(-1);
      const now = sign(difference(at[place]));
      if (now === last.sign) {
        last.to = at[place];
        continue;
      }
      let [low, high] = [at[place - 1], at[place]];
      for (let halving = 0; halving < 30; halving++) {
        const middle = (low + high) / 2;
        if (sign(difference(middle)) === last.sign) low = middle;
        else high = middle;
      }
      last.to = low;
      parts.push({ from: high, to: at[place], sign: now });
    }
    return parts;
  }

  return { problem, quantile, expectedCost, decide, realisedCosts, sum, mean, coveredShare, crossings };
})();

if (typeof module !== "undefined") module.exports = Amounts;
