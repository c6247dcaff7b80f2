// The server's log: its last lines, and new ones as they are written.

import { html, useEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { feed, withQuery } from '../lib/api.js';
import { count, time } from '../lib/format.js';
import { stringify } from '../lib/json.js';
import { setParameters } from '../lib/router.js';
import { Dialog, Head } from '../ui/basics.js';
import { Code } from '../ui/editor.js';
import { Table } from '../ui/table.js';

const PAST = 1000;
const KEPT_MAX = 20_000;
const DRAW_MS = 100;
const LEVELS = [
  ['debug', 'All lines'],
  ['info', 'Info and worse'],
  ['warn', 'Warnings and errors'],
  ['error', 'Errors'],
];
const TAGS = { ERROR: 'bad', WARN: 'warn' };

// A line as text: a request in the order in which one reads it, any other line with its fields behind the message.
export function lineText({ target, message, fields }) {
  const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
  if (target === 'stemma::request') {
    const { method, route, status, ms, bytes, user, error, reason } = fields;
    const outcome = status === 0 ? 'the client left' : status;
    const parts = [`${method} ${route}`, outcome, ms !== undefined && `${ms} ms`, bytes !== undefined && `${count(bytes)} B`];
    return [...parts, user, error, reason].filter(Boolean).map(shown).join(' · ');
  }
  const rest = Object.entries(fields).map(([name, value]) => `${name}=${shown(value)}`);
  return [message, ...rest].filter(Boolean).join('  ');
}

const COLUMNS = [
  { name: 'time', label: 'Time', width: 150, render: ({ time: at }) => time(Date.parse(at)) },
  {
    name: 'level',
    label: 'Level',
    width: 74,
    render: ({ level }) => html`<span class=${`tag ${TAGS[level] ?? ''}`}>${level}</span>`,
  },
  { name: 'target', label: 'Part', width: 140, render: ({ target }) => target },
  { name: 'text', label: 'Line', width: 420, render: ({ text }) => text },
];

// Follows the log at a level: { lines, state }, the newest line first. While `paused`, new lines wait.
function useLog(level, paused) {
  const [lines, setLines] = useState([]);
  const [state, setState] = useState('waiting');
  const held = useRef(paused);
  held.current = paused;
  useEffect(() => {
    let waiting = [];
    // A feed that reconnects repeats lines.
    let newest = 0;
    setLines([]);
    const stop = feed(
      withQuery('/_log', { feed: 'eventsource', level, limit: PAST, heartbeat: 20000 }),
      {
        message: (line) => {
          if (!line || line.seq <= newest) return;
          newest = line.seq;
          waiting.push({ ...line, text: lineText(line) });
          if (waiting.length > KEPT_MAX) waiting = waiting.slice(-KEPT_MAX / 2);
        },
      },
      setState,
    );
    const timer = setInterval(() => {
      if (waiting.length === 0 || held.current) return;
      const fresh = waiting.reverse();
      waiting = [];
      setLines((lines) => [...fresh, ...lines].slice(0, KEPT_MAX));
    }, DRAW_MS);
    return () => {
      stop();
      clearInterval(timer);
    };
  }, [level]);
  return { lines, state };
}

export function Log({ parameters }) {
  const known = LEVELS.some(([name]) => name === parameters.level);
  const [level, setLevel] = useState(known ? parameters.level : 'debug');
  const [filter, setFilter] = useState('');
  const [paused, setPaused] = useState(false);
  const [open, setOpen] = useState();
  const { lines, state } = useLog(level, paused);
  const shown = useMemo(() => {
    const wanted = filter.toLowerCase();
    return wanted ? lines.filter(({ text, target }) => `${target} ${text}`.toLowerCase().includes(wanted)) : lines;
  }, [lines, filter]);
  const choose = (event) => {
    setLevel(event.target.value);
    setParameters({ level: event.target.value === 'debug' ? '' : event.target.value });
  };
  return html`<${Head} title="Log">
      <select aria-label="Level" value=${level} onChange=${choose}>
        ${LEVELS.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}</select>
      <input data-slash type="search" aria-label="Filter lines" placeholder="Lines that contain …" value=${filter}
        onInput=${(event) => setFilter(event.target.value)} />
      <span class=${`state ${state === 'open' ? 'good' : 'busy'}`} role="status">
        ${paused ? 'paused' : { open: 'live', waiting: 'connecting', closed: 'ended' }[state]}</span>
      <button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? 'Continue' : 'Pause'}</button>
    <//>
    <${Table} label="Log" columns=${COLUMNS} rows=${shown} rowKey=${({ seq }) => seq} onOpen=${setOpen}
      empty=${filter ? 'No line contains this text.' : 'No line of this level is in memory. What is logged depends on the setting log.level.'} />
    <p class="soft">The newest lines are first. A request is logged with its route, and without its path, query and body.</p>
    ${open && html`<${Line} line=${open} close=${() => setOpen(undefined)} />`}`;
}

function Line({ line: { text, ...line }, close }) {
  return html`<${Dialog} title="Line of the log" wide onClose=${close}>
    <div class="dialog-body"><p>${text}</p><${Code} label="Line as JSON" text=${stringify(line, 2)} /></div>
  <//>`;
}
