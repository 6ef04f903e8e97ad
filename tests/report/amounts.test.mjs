// The page's decisions about amounts against Python's, on the same numbers: test_amounts_in_the_page.py writes them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import Amounts from "../../src/stakes/report/assets/amounts.js";

const examples = JSON.parse(readFileSync(process.env.STAKES_EXAMPLES, "utf8"));

function all(ours, theirs, what, within = 1e-9) {
  assert.equal(ours.length, theirs.length, what);
  theirs.forEach((value, i) =>
    assert.ok(Math.abs(ours[i] - value) <= within * Math.max(1, Math.abs(value)), `${what} ${i}: ${ours[i]}, Python: ${value}`));
}

for (const [name, { quantiles, labels, range, at, rows }] of Object.entries(examples)) {
  const given = Amounts.problem(Float32Array.from(quantiles.flat()), range, rows);

  for (const { under, over, choice, claimed, realised } of at) {
    test(`${name}: decisions at ${under.length > 1 ? "costs of each row" : `${under} and ${over}`}`, () => {
      const ours = Amounts.decide(given, under, over);
      all(ours.choice, choice, "decision");
      // A sum of large amounts that comes to nothing does so but for their last digits.
      all(ours.claimed, claimed, "expected cost", Math.max(1e-9, 1e-13 * Math.max(...labels)));
      all(Amounts.realisedCosts(ours.choice, labels, under, over), realised, "cost");
      const covered = labels.filter((value, i) => value <= choice[i]).length / labels.length;
      all([Amounts.coveredShare(ours.choice, labels)], [covered], "covered");
    });
  }
}

test("where a difference passes through 0", () => {
  const at = [0, 0.25, 0.5, 0.75, 1];
  const parts = Amounts.crossings((x) => (x - 0.3) * (x - 0.6), at);
  assert.deepEqual(parts.map(({ sign }) => sign), [1, -1, 1]);
  all(parts.map(({ from }) => from), [0, 0.3, 0.6], "from", 1e-7);
  all(parts.map(({ to }) => to), [0.3, 0.6, 1], "to", 1e-7);
  assert.deepEqual(Amounts.crossings(() => 0, at), [{ from: 0, to: 1, sign: 0 }]);
});
