// Topologies: databases of this and of other servers, and the replications between them, drawn as a graph.

import { html, useLoad, usePolling, useState } from '../lib/dom.js';
import { ask, ensureSession, get, post, segment } from '../lib/api.js';
import { count, duration } from '../lib/format.js';
import { parse, stringify } from '../lib/json.js';
import { Confirm, Empty, ErrorNote, Field, FormDialog, Head, Icon, Loaded } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';

const INTERVAL = 2000;
const START = {
  shape: 'fan-out',
  direction: 'both',
  nodes: [
    { name: 'head', database: 'books' },
    { name: 'oslo', database: 'https://ada:secret@oslo.example.org/books' },
  ],
};
const STATES = { caught_up: 'good', running: 'busy', paused: 'busy', crashing: 'bad', failed: 'bad', stopped: 'bad' };

const State = ({ state }) => html`<span class=${`state ${STATES[state] ?? 'busy'}`}>${state.replace('_', ' ')}</span>`;
const COLUMNS = [
  { name: 'source', label: 'Source', width: 120 },
  { name: 'target', label: 'Target', width: 120 },
  { name: 'state', label: 'State', width: 110, render: State },
  { name: 'lag_s', label: 'Behind', width: 100, align: 'right', render: ({ lag_s: lag }) => duration(lag) },
  { name: 'pending', label: 'To go', width: 90, align: 'right', render: ({ pending }) => count(pending) },
  { name: 'written', label: 'Written', width: 90, align: 'right', render: ({ written }) => count(written) },
  { name: 'error', label: 'Error', width: 280, render: ({ error }) => error ?? '' },
];

const RADIUS = 7;
const HEIGHT = 250;
const WIDTH = 440;

// The places of the databases: in rows by their tiers, or else on an ellipse.
function places(nodes) {
  const tiers = [...new Set(nodes.map(({ tier }) => tier))].sort();
  if (tiers.length > 1) {
    return nodes.map(({ tier }, index) => {
      const row = nodes.filter((node) => node.tier === tier);
      const at = row.indexOf(nodes[index]) + 1;
      return { x: (WIDTH * at) / (row.length + 1), y: (HEIGHT * (tiers.indexOf(tier) + 0.7)) / (tiers.length + 0.2) };
    });
  }
  return nodes.map((_, index) => {
    const angle = (2 * Math.PI * index) / nodes.length - (nodes.length === 2 ? Math.PI : Math.PI / 2);
    return { x: WIDTH / 2 + WIDTH * 0.34 * Math.cos(angle), y: HEIGHT / 2 - 8 + HEIGHT * 0.36 * Math.sin(angle) };
  });
}

// An arc from one place to another, with an arrow head. The opposite one bends to the other side.
function arc(from, to) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  const [cx, cy] = [(from.x + to.x) / 2 - uy * 16, (from.y + to.y) / 2 + ux * 16];
  const [tx, ty] = [to.x - cx, to.y - cy];
  const near = Math.hypot(tx, ty) || 1;
  const [ex, ey] = [to.x - (tx / near) * (RADIUS + 3), to.y - (ty / near) * (RADIUS + 3)];
  const [bx, by] = [ex - (tx / near) * 8, ey - (ty / near) * 8];
  const [wx, wy] = [(-ty / near) * 4, (tx / near) * 4];
  const at = (...numbers) => numbers.map((number) => number.toFixed(1)).join(' ');
  return {
    line: `M${at(from.x, from.y)} Q${at(cx, cy)} ${at(bx, by)}`,
    head: `M${at(ex, ey)} L${at(bx + wx, by + wy)} L${at(bx - wx, by - wy)} Z`,
  };
}

function Graph({ name, nodes, replications }) {
  const at = new Map(places(nodes).map((place, index) => [nodes[index].name, place]));
  const edges = replications.filter(({ source, target }) => at.has(source) && at.has(target));
  return html`<svg class="topology" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img"
    aria-label=${`${name}: ${nodes.length} databases, ${edges.length} replications`}>
    ${edges.map(({ source, target, state }) => {
      const { line, head } = arc(at.get(source), at.get(target));
      return html`<g key=${`${source} ${target}`} class=${`flow ${STATES[state] ?? 'busy'}`}><path d=${line} /><path
        class="flow-head" d=${head} /></g>`;
    })}
    ${nodes.map((node) => {
      const { x, y } = at.get(node.name);
      return html`<g key=${node.name} class="node"><circle cx=${x} cy=${y} r=${RADIUS} /><text x=${x} y=${y + 22}>
        ${node.name}</text></g>`;
    })}
  </svg>`;
}

export function Topologies() {
  const load = useLoad((signal) => get('/_topology', {}, { signal }), []);
  const [dialog, setDialog] = useState();
  const [error, setError] = useState();
  usePolling(async () => !dialog && load.reload(), INTERVAL, [!dialog]);
  const pause = async (name, isPaused) => {
    setError(undefined);
    try {
      await ensureSession();
      await post(`/_topology/${segment(name)}/${isPaused ? '_resume' : '_pause'}`, {});
      load.reload();
    } catch (error) {
      setError(error);
    }
  };
  return html`<${Head} title="Topologies"><button class="primary" onClick=${() => setDialog({})}><${Icon}
    name="plus" />New topology</button><//>
    <p class="soft">A topology names databases of this and of other servers. This server runs the replications between
      them.</p>
    <${ErrorNote} error=${error} />
    <${Loaded} load=${load}>${({ topologies }) =>
      Object.keys(topologies).length === 0
        ? html`<${Empty}>There are no topologies.<//>`
        : Object.entries(topologies).map(
            ([name, topology]) => html`<section key=${name} class="panel" aria-label=${`Topology ${name}`}>
        <div class="panel-head"><h2>${name} <span class="soft">${topology.shape ?? 'single replications'}${
          topology.direction === 'both' ? ', both ways' : ''
        }</span></h2>
          <div class="actions">
            <button onClick=${() => pause(name, topology.paused)}>${topology.paused ? 'Resume' : 'Pause'}</button>
            <button onClick=${() => setDialog({ name, topology })}>Edit …</button>
            <button class="danger" onClick=${() => setDialog({ remove: name })}>Delete …</button>
          </div></div>
        <div class="columns-2"><${Graph} name=${name} ...${topology} />
          <${List} nodes=${topology.nodes} /></div>
        <${Table} label=${`Replications of ${name}`} fit columns=${COLUMNS} rows=${topology.replications}
          rowKey=${({ source, target }) => `${source} ${target}`} />
      </section>`,
          )}<//>
    ${dialog && !dialog.remove && html`<${TopologyDialog} ...${dialog} close=${() => setDialog()}
      done=${load.reload} />`}
    ${
      dialog?.remove &&
      html`<${Confirm} title="Delete topology" action="Delete" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `/_topology/${segment(dialog.remove)}`);
        load.reload();
      }}><p>The replications of <b>${dialog.remove}</b> end. What was replicated stays.</p><//>`
    }`;
}

const List = ({ nodes }) =>
  html`<dl class="list members">${nodes.map(
    ({ name, database }) => html`<div key=${name}><dt>${name}</dt><dd class="mono">${database}</dd></div>`,
  )}</dl>`;

function TopologyDialog({ name, topology, close, done }) {
  const { replications: _, ...defined } = topology ?? START;
  const [body, setBody] = useState(stringify(defined, 2));
  const save = async (form) => {
    const value = parse(body);
    await ensureSession();
    await ask('PUT', `/_topology/${segment(name ?? form.get('name'))}`, { text: stringify(value) });
    done();
  };
  return html`<${FormDialog} title=${name ? `Topology ${name}` : 'New topology'} action="Save" onClose=${close}
    submit=${save} wide>
    ${!name && html`<${Field} label="Name"><input name="name" required autofocus autocomplete="off"
      spellcheck="false" /><//>`}
    ${name && html`<p class="soft">Credentials are not shown: write those of other servers again.</p>`}
    <${Editor} label="Definition" value=${body} onChange=${setBody} rows=${14} />
    <p class="soft">Shapes: chain, ring, group, fan-out, fan-in, tiered. "edges" adds single replications, "selector"
      limits the documents, "create" makes missing databases.</p>
  <//>`;
}
