// The page's decisions against Python's, on the same numbers: test_decisions_in_the_page.py writes them to a file.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import Decisions from "../../src/stakes/report/assets/decisions.js";

const examples = JSON.parse(readFileSync(process.env.STAKES_EXAMPLES, "utf8"));
const close = (ours, theirs, what) =>
  assert.ok(Math.abs(ours - theirs) <= 1e-9 * Math.max(1, Math.abs(theirs)), `${what}: ${ours}, Python: ${theirs}`);

function all(ours, theirs, what) {
  assert.equal(ours.length, theirs.length, what);
  theirs.forEach((value, i) => close(ours[i], value, `${what} ${i}`));
}

for (const [name, example] of Object.entries(examples)) {
  const probs = Float32Array.from(example.probs.flat());
  const { costs, labels } = example;
  const [D, C] = [costs.length, costs[0].length];
  const expected = Decisions.expectedCosts(probs, costs);
  const choice = Decisions.decide(expected, D);

  test(`${name}: decisions, confusion, totals`, () => {
    all(expected, example.expected.flat(), "expected cost");
    assert.deepEqual([...choice], example.choice);
    const counts = Decisions.confusion(choice, labels, D, C);
    assert.deepEqual(counts, example.counts);
    all(Decisions.money(counts, costs).flat(), example.money.flat(), "money");
    close(Decisions.sum(Decisions.realisedCosts(choice, labels, costs)), example.total, "total");
    close(Decisions.sum(Decisions.claimedCosts(expected, choice)), example.claimed, "claimed");
  });

  test(`${name}: flips`, () => {
    const found = Decisions.flips(Int32Array.from(example.choice), Int32Array.from(example.after), labels, example.edited);
    assert.deepEqual(found.map((flip) => flip.index).sort((a, b) => a - b), example.flips);
    for (const { index, from, to, outcome, was, now } of found) {
      assert.deepEqual([from, to, outcome], [example.choice[index], example.after[index], labels[index]]);
      assert.deepEqual([was, now], [example.edited[from][outcome], example.edited[to][outcome]]);
    }
    found.slice(1).forEach((flip, i) => assert.ok(flip.now <= found[i].now, "most costly first"));
  });

  test(`${name}: break-even points`, () => {
    for (const { decision, outcome, at, taken } of example.scans) {
      const { at: ours, other } = Decisions.breakEvens(probs, costs, decision, outcome);
      // Python decided at many values of the cost: each case takes the decision below its point, and none other above.
      at.forEach((value, place) => {
        for (let i = 0; i < labels.length; i++) {
          if (Math.abs(ours[i] - value) < 1e-9) continue; // on the point itself either is right
          assert.equal(taken[place][i], value < ours[i] ? decision : other[i], `case ${i} at ${value}`);
        }
      });
    }
  });

  test(`${name}: second opinion`, () => {
    const claimed = Decisions.claimedCosts(expected, choice);
    const ask = Decisions.referral(claimed, Decisions.realisedCosts(choice, labels, costs));
    for (const { cost, referred, total } of example.referrals) {
      assert.equal(ask(cost).referred, referred, `referred at ${cost}`);
      close(ask(cost).total, total, `total at ${cost}`);
    }
  });
}

test("equal decisions: the first is taken, as in Python", () => {
  assert.deepEqual([...Decisions.decide(Float64Array.of(2, 1, 1, 3, 3, 3), 3)], [1, 0]);
});

test("an outcome without probability has no break-even point", () => {
  const { at, other } = Decisions.breakEvens(Float32Array.of(1, 0, 0, 1), [[0, 9], [5, 0]], 0, 1);
  assert.deepEqual([...at], [Infinity, 0]);
  assert.deepEqual([...other], [1, 1]);
  assert.deepEqual([...Decisions.breakEvens(Float32Array.of(1, 0), [[7, 9], [5, 0]], 0, 1).at], [-Infinity]);
});

test("the table as CSV", () => {
  const csv = Decisions.costsCsv([[0, 1.5], [-2, 1e-7]], ['a,"b"', "c"], ["x", "y;z"], "£", "cost");
  assert.equal(csv, 'cost [£],x,"y;z"\n"a,""b""",0,1.5\nc,-2,1e-7\n');
  assert.equal(Decisions.costsCsv([[1]], ["a"], ["b"], "per (hour)", "utility"), "utility,b\na,1\n", "a unit no file can state");
});
