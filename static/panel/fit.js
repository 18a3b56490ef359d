// The deploy page's arithmetic: what a place holds at another context, or for more people, before the panel answers.
// The same sum as models_catalog/estimate/vllm.py, need.py and alone.py; the numbers come with the plan, and
// its answer corrects this one. Memory is GiB, blocks and tokens are counted. A test holds both halves together.
'use strict';
const Fit = (() => {
  const GIB = 2 ** 30, JUST_GIB = 0.5;                           // verdict.py: "it just fits"
  const ORDER = ['fits', 'tight', 'unknown', 'unlikely', 'no'];
  const worse = (a, b) => ORDER.indexOf(a) > ORDER.indexOf(b) ? a : b;
  const pages = (tokens, block) => Math.ceil(tokens / block);
  const budget = (d, share) => Math.ceil(d.total * GIB * share) / GIB;

  /** Blocks that one request of so many tokens takes, over all groups of layers. */
  function requestBlocks(d, tokens) {
    let sum = 0;
    for (const [kind, block, window] of d.groups) {
      if (kind === 'full') sum += pages(tokens, block);
      else if (kind === 'state') sum += d.state;
      else if (kind === 'chunked') sum += pages(Math.min(window + d.flight, tokens), block);
      else sum += pages(Math.min(window - 1 + d.flight, tokens), block) + 1;
    }
    return sum;
  }

  /** GiB of the cache of each stage at a share, as [value, low, high]. */
  function caches(d, share) {
    return d.stages.map(({ kv }) => {
      if (d.told) return [kv, kv, kv];
      const value = kv + budget(d, share) - budget(d, d.share);
      const doubt = Math.max(d.doubt[0], d.doubt[1] * Math.abs(value));
      const low = value >= 0 ? Math.max(0, value - doubt) : value - doubt;
      return [value, low, value + Math.min(doubt, Math.max(0, budget(d, share) - value))];
    });
  }

  const blocks = (d, kv, end) =>
    Math.min(...d.stages.map((stage, at) => Math.max(0, Math.floor(kv[at][end] * GIB / stage.bytes))));

  /** Whether a number with its range is surely, tightly, hardly or not enough. */
  const enough = (ends, reaches) => reaches(ends[2]) ? (reaches(ends[0]) ? (reaches(ends[1]) ? 'fits' : 'tight') : 'unlikely') : 'no';

  /** What the place holds with one share: level, people as [value, low, high], GiB of the cache a stage. */
  function at(d, context, people, share) {
    const must = context ?? d.must, goal = context ?? d.goal, kv = caches(d, share);
    const counts = [0, 1, 2].map(end => blocks(d, kv, end)), one = requestBlocks(d, goal);
    const ends = counts.map(n => one ? d.replicas * d.times * n / one : 0);
    const holds = tokens => n => requestBlocks(d, Math.ceil(tokens / d.times)) <= n - d.spare;
    let level = enough(counts, holds(must ?? d.short));
    if (people) level = worse(level, enough(ends, n => n >= people));
    else if (must == null && enough(ends, n => n >= 1) !== 'fits') level = worse(level, 'tight');
    const lowest = kv.reduce((a, b) => b[0] < a[0] ? b : a);
    const little = !d.told && lowest[0] > 0 && Math.min(lowest[1], lowest[0] - JUST_GIB) <= 0;
    const close = enough(counts, holds(goal)) === 'tight', crowded = d.beside > 0 && d.beside > d.total * (1 - share);
    if (level === 'fits' && (little || close || crowded)) level = 'tight';
    return { level, share, people: ends, one, kv: kv.map(ends => ends[0]), context: goal };
  }

  /** The smallest share in hundredths that holds it; null when none does. */
  function leastShare(d, context, people, levels) {
    const holds = n => levels.includes(at(d, context, people, n / 100).level);
    let low = Math.round(d.least * 100), high = 97;
    if (!holds(high)) return null;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(middle)) high = middle; else low = middle + 1;
    }
    return high / 100;
  }

  /** As the planner would choose the share of this place. */
  function answer(d, context, people) {
    const ok = ['fits', 'tight'], usual = at(d, context, people, d.said ? d.share : d.usual);
    if (d.ends && context > d.ends) return { ...usual, level: 'no' };  // the model was not made for it
    if (d.said) return usual;
    const frugal = d.priority === 'fit' ? leastShare(d, context, people, ['fits']) ?? leastShare(d, context, people, ok) : null;
    if (frugal !== null && frugal <= d.most) return at(d, context, people, frugal);
    const least = leastShare(d, context, people, ok);
    if (ok.includes(usual.level) && d.roomy) return usual;
    if (least !== null && least <= d.most) return at(d, context, people, Math.max(least, Math.min(d.roomy ? 0.9 : d.usual, d.most)));
    if (least === null && usual.level === 'unlikely' && d.roomy) return usual;
    return { ...at(d, context, people, Math.max(d.most, d.least)), level: 'no' };
  }

  /** The longest context for so many people, in steps of 1,024 or the model's own; 0 where not even that fits. */
  function longest(d, people) {
    const own = d.longest ?? 2 ** 20, holds = n => ['fits', 'tight'].includes(at(d, n, people || 1, d.most).level);
    let low = 0, high = Math.floor(own / 1024);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (holds(middle * 1024)) low = middle; else high = middle - 1;
    }
    return low === Math.floor(own / 1024) && own % 1024 && holds(own) ? own : low * 1024;
  }

  /** How many of the people that there is memory for are answered at once. */
  const room = (d, said) => Math.min(Math.floor(said.people[0]), d.seats ?? Infinity);

  /** The most people of one context. */
  const most = (d, context) => room(d, at(d, context, null, d.most));

  return { at, answer, longest, most, requestBlocks, room };
})();
