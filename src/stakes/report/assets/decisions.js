// What follows from a table of costs and the probabilities of the test cases. Pure functions, for the page and for Node.
//
// Probabilities are one flat array, case by case: probs[i * C + c]. Costs are rows: costs[d][c].
"use strict";

const Decisions = (() => {
  // Flat, case by case: what each decision is expected to cost.
  function expectedCosts(probs, costs) {
    const outcomes = costs[0].length;
    const cases = probs.length / outcomes;
    const expected = new Float64Array(cases * costs.length);
    for (let i = 0, place = 0; i < cases; i++) {
      for (const row of costs) {
        let sum = 0;
        for (let c = 0; c < outcomes; c++) sum += probs[i * outcomes + c] * row[c];
        expected[place++] = sum;
      }
    }
    return expected;
  }

  // The decision with the least expected cost in each case; of equal ones, the first.
  function decide(expected, decisions) {
    const choice = new Int32Array(expected.length / decisions);
    for (let i = 0; i < choice.length; i++) {
      let best = 0;
      for (let d = 1; d < decisions; d++) {
        if (expected[i * decisions + d] < expected[i * decisions + best]) best = d;
      }
      choice[i] = best;
    }
    return choice;
  }

  // What the chosen decision is expected to cost, and what it did cost, in each case.
  function claimedCosts(expected, choice) {
    const decisions = expected.length / choice.length;
    return Float64Array.from(choice, (d, i) => expected[i * decisions + d]);
  }

  function realisedCosts(choice, labels, costs) {
    return Float64Array.from(choice, (d, i) => costs[d][labels[i]]);
  }

  // Rows of counts: how often each decision met each outcome.
  function confusion(choice, labels, decisions, outcomes) {
    const counts = Array.from({ length: decisions }, () => new Array(outcomes).fill(0));
    for (let i = 0; i < choice.length; i++) counts[choice[i]][labels[i]] += 1;
    return counts;
  }

  function money(counts, costs) {
    return counts.map((row, d) => row.map((count, c) => count * costs[d][c]));
  }

  function sum(values) {
    let total = 0;
    for (const value of values) total += value;
    return total;
  }

  // The cases that are decided differently, those whose new decision cost the most first.
  function flips(before, after, labels, costs) {
    const found = [];
    for (let i = 0; i < before.length; i++) {
      if (before[i] === after[i]) continue;
      const outcome = labels[i];
      const was = costs[before[i]][outcome];
      const now = costs[after[i]][outcome];
      found.push({ index: i, outcome, from: before[i], to: after[i], was, now });
    }
    return found.sort((a, b) => b.now - a.now || b.now - b.was - (a.now - a.was) || a.index - b.index);
  }

  // For one cost, the value in each case at which the decision changes: below it that decision is taken, above it
  // `other`, the best of the rest. Exact: the expected cost is a line in this one value. A case in which the outcome
  // has no probability never changes: its value is -Infinity or Infinity.
  function breakEvens(probs, costs, decision, outcome) {
    const outcomes = costs[0].length;
    const cases = probs.length / outcomes;
    const expected = expectedCosts(probs, costs);
    const at = new Float64Array(cases);
    const other = new Int32Array(cases);
    for (let i = 0; i < cases; i++) {
      let rest = 0;
      for (let c = 0; c < outcomes; c++) if (c !== outcome) rest += probs[i * outcomes + c] * costs[decision][c];
      let least = Infinity;
      other[i] = decision;
      for (let d = 0; d < costs.length; d++) {
        const value = expected[i * costs.length + d];
        if (d !== decision && value < least) [least, other[i]] = [value, d];
      }
      const p = probs[i * outcomes + outcome];
      const wins = rest < least || (rest === least && decision < other[i]);
      at[i] = p > 0 ? (least - rest) / p : wins ? Infinity : -Infinity;
    }
    return { at, other };
  }

  // A decision that costs the same whatever happens, beside the others: how many cases it is taken in, and the total.
  // A case is referred where that is cheaper than all the model expects of its own decisions.
  function referral(claimed, realised) {
    const order = Array.from(claimed.keys()).sort((a, b) => claimed[a] - claimed[b]);
    const thresholds = Float64Array.from(order, (i) => claimed[i]);
    const kept = new Float64Array(order.length + 1);
    order.forEach((i, place) => (kept[place + 1] = kept[place] + realised[i]));
    return (cost) => {
      const own = countUpTo(thresholds, cost);
      const referred = order.length - own;
      return { referred, total: kept[own] + referred * cost };
    };
  }

  // How many values of a sorted array are at most `limit`.
  function countUpTo(sorted, limit) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The table as a file for --costs: quoted where need be; a unit that the file could not state is left out.
  function costsCsv(table, decisions, outcomes, unit, noun) {
    const quoted = (text) => (/[",;\t|\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const corner = unit && !/[[\]()\r\n]/.test(unit) ? `${noun} [${unit}]` : noun;
    const rows = [[corner, ...outcomes], ...table.map((row, d) => [decisions[d], ...row.map(String)])];
    return rows.map((row) => row.map(quoted).join(",") + "\n").join("");
  }

  return {
    expectedCosts, decide, claimedCosts, realisedCosts, confusion, money, sum, flips, breakEvens, referral, countUpTo,
    costsCsv,
  };
})();

if (typeof module !== "undefined") module.exports = Decisions;
