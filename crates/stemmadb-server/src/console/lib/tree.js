// A document's revision tree, and where its revisions are drawn.

import { sequence } from './format.js';

// More generations than this are drawn without those at which nothing branches or ends.
const COLUMNS_MAX = 40;

const generation = (rev) => Number.parseInt(rev, 10);

// The nodes of a `_history` response, by revision. Each has its parent and children, and, if it is stored, its time,
// author, sequence and contents.
export function revisionTree(history) {
  const nodes = new Map();
  const node = (rev) => {
    if (!nodes.has(rev)) nodes.set(rev, { rev, generation: generation(rev), children: [], parent: undefined });
    return nodes.get(rev);
  };
  for (const { rev, deleted, revisions } of history.branches) {
    revisions.forEach((name, at) => {
      const child = node(name);
      const parent = revisions[at + 1] && node(revisions[at + 1]);
      if (!parent || child.parent) return;
      child.parent = parent;
      parent.children.push(child);
    });
    Object.assign(node(rev), { isLeaf: true, deleted });
  }
  for (const stored of history.stored) {
    const known = nodes.get(stored.rev);
    if (known) {
      const time = stored.time_us ? stored.time_us / 1000 : undefined;
      Object.assign(known, {
        stored: true,
        time,
        author: stored.author,
        seq: sequence(stored.seq),
        doc: stored.doc,
        deleted: stored.deleted,
      });
    }
  }
  const winner = nodes.get(history.rev);
  if (winner) winner.isWinner = true;
  for (const leaf of nodes.values()) leaf.isConflict = !!leaf.isLeaf && !leaf.isWinner && !leaf.deleted;
  return nodes;
}

// Gives the nodes that are drawn a `column` and a `lane`; returns them in order, with the edges between them. The
// winning branch is the first lane; branches that leave it later are nearer to it.
export function layout(history, nodes) {
  const forkOf = ({ revisions }) => {
    const winning = new Set(history.branches[0].revisions);
    return generation(revisions.find((rev) => winning.has(rev)) ?? '0');
  };
  const [first, ...rest] = history.branches;
  const branches = [first, ...rest.sort((left, right) => forkOf(right) - forkOf(left))];
  branches.forEach(({ revisions }, lane) => {
    for (const rev of revisions) nodes.get(rev).lane ??= lane;
  });
  const all = [...nodes.values()];
  const generations = new Set(all.map((node) => node.generation));
  let drawn = all;
  if (generations.size > COLUMNS_MAX) {
    const newest = Math.max(...generations) - COLUMNS_MAX / 2;
    drawn = all.filter((node) => !node.parent || node.isLeaf || node.children.length > 1 || node.generation > newest);
  }
  const columns = [...new Set(drawn.map((node) => node.generation))].sort((left, right) => left - right);
  for (const node of drawn) node.column = columns.indexOf(node.generation);
  const edges = [];
  for (const node of drawn) {
    let parent = node.parent;
    while (parent && parent.column === undefined) parent = parent.parent;
    if (parent) edges.push({ from: parent, to: node, skipped: node.generation - parent.generation - 1 });
  }
  drawn.sort((left, right) => left.column - right.column || left.lane - right.lane);
  return { drawn, edges, columns: columns.length, lanes: branches.length };
}
