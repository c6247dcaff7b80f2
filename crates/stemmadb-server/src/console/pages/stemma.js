// The stemma of a document: its revisions drawn as a tree, what each of them changed, and the resolution of conflicts.

import { html, useEffect, useMemo, useRef, useState, useLoad } from '../lib/dom.js';
import { ask, askText, documentPath, ensureSession, segment, withQuery } from '../lib/api.js';
import { contents, differences, pathText, replaced } from '../lib/diff.js';
import { ago, plural, revision, time } from '../lib/format.js';
import { parse, stringify } from '../lib/json.js';
import { layout, revisionTree } from '../lib/tree.js';
import { ErrorNote, Loaded, Note } from '../ui/basics.js';
import { Code } from '../ui/editor.js';
import { Differences } from './differences.js';

// Contents of all stored revisions together, beyond which they are not loaded at once.
const CONTENTS_BYTES_MAX = 8_000_000;
const [COLUMN, LANE, LEFT, TOP] = [112, 78, 46, 34];

async function loadHistory(database, id, signal) {
  const path = `/${segment(database)}/_history/${segment(id)}`;
  try {
    return parse(await askText('GET', withQuery(path, { include_docs: true }), { signal, limit: CONTENTS_BYTES_MAX }));
  } catch (error) {
    if (error.status !== 413) throw error;
    return ask('GET', path, { signal });
  }
}

const exactly = async (database, id, rev) =>
  parse(await askText('GET', withQuery(documentPath(database, id), { rev })));

export function Stemma({ database, id, onWritten, say }) {
  const load = useLoad((signal) => loadHistory(database, id, signal), [database, id]);
  const written = (message) => {
    say(message);
    load.reload();
    onWritten();
  };
  return html`<${Loaded} load=${load}>${(
    history,
  ) => html`<${Tree} key=${`${history.rev} ${history.branches.length}`} history=${history}
    database=${database} id=${id} written=${written} />`}<//>`;
}

function Tree({ history, database, id, written }) {
  const nodes = useMemo(() => revisionTree(history), [history]);
  const plan = useMemo(() => layout(history, nodes), [nodes]);
  const [chosen, setChosen] = useState(history.rev);
  const [against, setAgainst] = useState('parent');
  const node = nodes.get(chosen);
  const leaves = [...nodes.values()].filter((node) => node.isLeaf && !node.deleted);
  const stored = [...nodes.values()].filter((node) => node.stored);
  const other = against === 'parent' ? node.parent : nodes.get(against);
  const summary = `${plural(nodes.size, 'revision')}, ${branchCount(history.branches.length)}, contents of ${stored.length} kept`;
  return html`<p class="soft summary">${summary}. The winning revision is <b class="mono">${revision(history.rev)}
    </b>.</p>
    <${Drawing} plan=${plan} chosen=${chosen} choose=${setChosen} />
    <div class="columns-2">
      <section class="panel" aria-label="Revision">
        <${Facts} node=${node} />
        <${Restore} ...${{ node, history, database, id, written }} />
        ${
          node.doc
            ? html`<${Code} label="Contents of the revision"
              text=${stringify(contents(node.doc), 2).slice(0, 50_000)} />`
            : html`<p class="soft">${
                node.stored
                  ? 'Its contents are too large to show here.'
                  : `The contents of this revision are not kept
            any more: compaction removed them. A retention keeps them: stemma history ${database}.stemma --keep 30d`
              }</p>`
        }
      </section>
      <section class="panel" aria-label="Differences">
        <div class="panel-head"><h2>What it changed</h2>
          <label class="field row"><span>compared with</span><select value=${against}
            onChange=${(event) => setAgainst(event.target.value)}>
            <option value="parent">its parent</option>
            ${stored.filter(({ rev }) => rev !== chosen).map(({ rev, isWinner }) => html`<option value=${rev}>
              ${revision(rev)}${isWinner ? ' (winner)' : ''}</option>`)}
          </select></label></div>
        ${
          !other
            ? html`<p class="soft">It is the first revision.</p>`
            : !node.doc || !other.doc
              ? html`<p class="soft">The contents of ${revision(node.doc ? other.rev : node.rev)} are not kept.</p>`
              : html`<${Differences} left=${contents(other.doc)} right=${contents(node.doc)}
                names=${[revision(other.rev), revision(node.rev)]} />`
        }
      </section>
    </div>
    ${leaves.length > 1 && html`<${Resolve} ...${{ leaves, history, database, id, written, chosen }} />`}`;
}

const branchCount = (number) => `${number} ${number === 1 ? 'branch' : 'branches'}`;

// A line to a child: straight, or bent to another lane beside the labels.
const curve = (x1, y1, x2, y2) =>
  y1 === y2
    ? `M${x1} ${y1}H${x2}`
    : `M${x1} ${y1}C${x1 + COLUMN * 0.66} ${y1} ${x1 + COLUMN * 0.36} ${y2} ${x1 + COLUMN * 0.86} ${y2}H${x2}`;

const kindOf = (node) =>
  [
    node.isWinner ? 'winner' : node.isConflict ? 'conflict' : node.deleted ? 'gone' : node.stored ? 'stored' : 'pruned',
    node.deleted ? 'deleted' : '',
  ].join(' ');

const whenOf = (node) => (node.time ? ago(node.time) : node.stored ? '' : 'not kept');

const describe = (node) =>
  [
    `${revision(node.rev)} ${whenOf(node)}`,
    node.isWinner && 'wins',
    node.isConflict && 'in conflict',
    node.deleted && 'deletion',
    node.time && time(node.time),
    node.author && `by ${node.author}`,
  ]
    .filter(Boolean)
    .join(', ');

function Drawing({ plan, chosen, choose }) {
  const box = useRef();
  // The winner is at the right end of a long tree.
  useEffect(() => {
    box.current.scrollLeft = box.current.scrollWidth;
  }, [plan]);
  const x = (node) => LEFT + node.column * COLUMN;
  const y = (node) => TOP + node.lane * LANE;
  const width = LEFT * 2 + (plan.columns - 1) * COLUMN + 24;
  const height = TOP + (plan.lanes - 1) * LANE + 56;
  const onKeyDown = (event, node) => {
    const siblings = node.parent?.children ?? [];
    const step = {
      ArrowLeft: node.parent,
      ArrowRight: node.children[0],
      ArrowDown: siblings[siblings.indexOf(node) + 1],
      ArrowUp: siblings[siblings.indexOf(node) - 1],
    };
    if (event.key === 'Enter' || event.key === ' ') choose(node.rev);
    else if (event.key in step) {
      const next = step[event.key];
      if (next?.column !== undefined) {
        choose(next.rev);
        event.currentTarget.ownerSVGElement.querySelector(`[data-rev="${next.rev}"]`)?.focus();
      }
    } else return;
    event.preventDefault();
  };
  return html`<div class="stemma" ref=${box}><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}
    role="group" aria-label="Revision tree">
    ${plan.drawn.filter(({ rev }) => rev === chosen).map((node) => html`<rect class="chosen" x=${x(node) - 44}
      y=${y(node) - 22} width="88" height="68" rx="6" />`)}
    ${plan.edges.map(({ from, to, skipped }) => {
      const [x1, y1, x2, y2] = [x(from), y(from), x(to), y(to)];
      return html`<g key=${to.rev}><path class=${`edge ${to.lane === 0 ? 'main' : ''} ${skipped ? 'skipped' : ''}`}
        d=${curve(x1, y1, x2, y2)} />
        ${skipped > 0 && html`<text class="skipped-count" x=${(x1 + x2) / 2} y=${y2 - 6} text-anchor="middle">
          ${skipped} more</text>`}</g>`;
    })}
    ${plan.drawn.map(
      (
        node,
      ) => html`<g key=${node.rev} data-rev=${node.rev} class=${`rev ${kindOf(node)}`} role="button" tabindex="0"
        aria-pressed=${node.rev === chosen}
      aria-label=${describe(node)} transform=${`translate(${x(node)} ${y(node)})`} onClick=${() => choose(node.rev)}
        onKeyDown=${(event) => onKeyDown(event, node)}>
      <rect x="-44" y="-22" width="88" height="68" rx="6" />
      <circle r="8" />${node.deleted && html`<path d="M-3.5 -3.5l7 7M3.5 -3.5l-7 7" />`}
      <text y="26" text-anchor="middle">${revision(node.rev)}</text>${' '}
      <text y="40" text-anchor="middle" class="when">${whenOf(node)}</text>
    </g>`,
    )}
  </svg></div>
  <div class="legend stemma-legend" aria-hidden="true"><span class="winner">winner</span><span
    class="conflict">conflict</span><span class="stored">earlier</span>
    <span class="pruned">contents not kept</span><span class="gone">deletion</span></div>`;
}

function Facts({ node }) {
  const state = node.isWinner ? 'wins' : node.isConflict ? 'in conflict' : node.isLeaf ? 'end of a branch' : 'replaced';
  const facts = [
    ['Revision', node.rev],
    ['State', node.deleted ? `${state}, a deletion` : state],
    ['Written', node.time ? time(node.time) : 'not known'],
    ['By', node.author ?? 'not recorded'],
    ['Sequence', node.seq ?? 'not known'],
  ];
  return html`<dl class="list">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd
    class=${name === 'Revision' ? 'mono' : ''}>${value}</dd></div>`)}</dl>`;
}

// Writes the contents of an earlier revision again, as a new revision.
function Restore({ node, history, database, id, written }) {
  const [error, setError] = useState();
  if (node.isWinner || !node.doc || node.deleted) return null;
  const restore = async () => {
    setError(undefined);
    try {
      await ensureSession();
      const body = { ...contents(node.doc), _id: id };
      if (!history.deleted) body._rev = history.rev;
      const { rev } = await ask('PUT', documentPath(database, id), { text: stringify(body) });
      written(`The contents of ${revision(node.rev)} are revision ${revision(rev)} now.`);
    } catch (error) {
      setError(error);
    }
  };
  return html`<div class="row"><button onClick=${restore}>Write these contents again</button><span
    class="soft">as a new revision on top of the winner</span></div>
    <${ErrorNote} error=${error} />`;
}

// Merges a conflicting revision into the winner, field by field, and deletes the losing branches.
function Resolve({ leaves, history, database, id, written, chosen }) {
  const losing = leaves.filter(({ rev }) => rev !== history.rev);
  const [other, setOther] = useState(losing[0].rev);
  const [picks, setPicks] = useState(new Map());
  const [pair, setPair] = useState();
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    if (losing.some(({ rev }) => rev === chosen)) setOther(chosen);
  }, [chosen]);
  useEffect(() => {
    let stale = false;
    setPair(undefined);
    setPicks(new Map());
    Promise.all([exactly(database, id, history.rev), exactly(database, id, other)]).then(
      (pair) => stale || setPair(pair),
      (error) => stale || setError(error),
    );
    return () => {
      stale = true;
    };
  }, [other, history.rev]);
  const choose = (path, side) => setPicks(new Map(picks).set(pathText(path), side));
  const all = (side) => setPicks(new Map(differences(...pair.map(contents)).map(({ path }) => [pathText(path), side])));
  const resolve = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await ensureSession();
      const [winner, loser] = pair;
      const taken = differences(contents(winner), contents(loser)).filter(
        ({ path }) => picks.get(pathText(path)) === 'right',
      );
      const merged = taken.reduce((merged, { path, right }) => replaced(merged, path, right), winner);
      const docs = losing.map(({ rev }) => ({ _id: id, _rev: rev, _deleted: true }));
      if (taken.length > 0) docs.unshift(merged);
      await ask('POST', `/${segment(database)}/_transact`, { text: stringify({ docs }) });
      written('The conflict is resolved.');
    } catch (error) {
      const isLate = error.status === 409;
      const late = 'Nothing was written: somebody wrote this document meanwhile. Look at the tree again.';
      setError(isLate ? new Error(late) : error);
    }
    setBusy(false);
  };
  return html`<section class="panel conflict-box" aria-label="Conflict">
    <div class="panel-head"><h2>Resolve the conflict</h2>
      <label class="field row"><span>winner ${revision(history.rev)} and</span><select aria-label="Conflicting revision"
        value=${other} onChange=${(event) => setOther(event.target.value)}>
        ${losing.map(({ rev }) => html`<option value=${rev}>${revision(rev)}</option>`)}</select></label></div>
    <${ErrorNote} error=${error} />
    ${
      pair &&
      html`<${Differences} left=${contents(pair[0])} right=${contents(pair[1])}
        names=${[`${revision(history.rev)} (winner)`, revision(other)]} choose=${choose} chosen=${picks} />
      <div class="actions">
        <button onClick=${() => all('left')}>All from the winner</button><button
          onClick=${() => all('right')}>All from ${revision(other)}</button>
        <button class="primary" disabled=${busy} onClick=${resolve}>Resolve</button>
      </div>
      <${Note}>Writes the chosen fields as a new revision, and deletes the
        losing branches. Replicas receive the decision.<//>`
    }
  </section>`;
}
