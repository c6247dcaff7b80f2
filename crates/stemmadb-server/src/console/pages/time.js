// Time travel: the database as it was, and what differs between two times.

import { html, useEffect, useLoad, useMemo, useState } from '../lib/dom.js';
import { get, post, segment } from '../lib/api.js';
import { contents } from '../lib/diff.js';
import { cell, count, duration, plural, revision, sequence, time } from '../lib/format.js';
import { databaseAddress, setParameters } from '../lib/router.js';
import { Choice, Dialog, Empty, ErrorNote, Head, Icon, Loaded, Loading, Note } from '../ui/basics.js';
import { Code } from '../ui/editor.js';
import { isSame, own, stringify } from '../lib/json.js';
import { Table } from '../ui/table.js';
import { Differences } from './differences.js';

const PAGE = 200;
const STEPS = 1000;
// Documents that are compared at once.
const COMPARED = 200;

function retentionText({ retention }) {
  if (retention.everything) return 'everything is kept';
  if (retention.seconds) return `the last ${duration(retention.seconds)} are kept`;
  if (retention.revisions) return `${plural(retention.revisions, 'replaced revision')} of each document are kept`;
  if (retention.bytes) return `up to ${count(retention.bytes)} bytes of history are kept`;
  return '';
}

export function Time({ database, parameters }) {
  const path = `/${segment(database)}`;
  const load = useLoad((signal) => get(`${path}/_statistics`, {}, { signal }), [database]);
  return html`<${Loaded} load=${load}>${(statistics) => html`<${Traveler} database=${database} statistics=${statistics}
    parameters=${parameters} reload=${load.reload} />`}<//>`;
}

function Traveler({ database, statistics, parameters, reload }) {
  const { history } = statistics;
  const newest = sequence(statistics.seq);
  const oldest = sequence(history.oldest_seq);
  const [mode, setMode] = useState(parameters.mode === 'differences' ? 'differences' : 'state');
  const [at, setAt] = useState(clamp(Number(parameters.at ?? newest), oldest, newest));
  const [from, setFrom] = useState(clamp(Number(parameters.from ?? oldest), oldest, newest));
  const [now, setNow] = useState({ at, from });
  // The slider moves at once; what it shows is loaded when it rests.
  useEffect(() => {
    const timer = setTimeout(() => {
      setNow({ at, from });
      setParameters({
        at: at === newest ? '' : at,
        from: from === oldest ? '' : from,
        mode: mode === 'state' ? '' : mode,
      });
    }, 180);
    return () => clearTimeout(timer);
  }, [at, from, mode]);
  const keeps = retentionText(history);
  const span = history.oldest_time_us ? (history.newest_time_us - history.oldest_time_us) / 1e6 : Number.NaN;
  return html`<${Head} title="Time" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}
      facts=${[
        ['Reaches back', Number.isFinite(span) ? duration(span) : 'the beginning'],
        ['Transactions', count(newest - oldest)],
        ['Sequence', count(newest)],
      ]}>
      <${Choice} label="Show" value=${mode} onChange=${setMode} options=${[
        ['state', 'State at a time'],
        ['differences', 'Between two times'],
      ]} />
      <button onClick=${reload}>Refresh</button>
    <//>
    ${
      !keeps &&
      html`<${Note} kind="warn">This database has no retention: the past is there only until compaction removes it.
      To keep it from now on: <code>stemma history ${database}.stemma --keep 30d</code><//>`
    }
    ${keeps && html`<p class="soft">Retention: ${keeps}.</p>`}
    <div class="when-panel">
      ${mode === 'differences' && html`<${Slider} label="From" value=${from}
        set=${(value) => setFrom(Math.min(value, at))} ...${{ oldest, newest, database }} />`}
      <${Slider} label=${mode === 'state' ? 'As of' : 'To'} value=${at}
        set=${(value) => setAt(mode === 'state' ? value : Math.max(value, from))} ...${{ oldest, newest, database }} />
    </div>
    ${
      mode === 'state'
        ? html`<${State} key=${now.at} database=${database} at=${now.at} isNow=${now.at === newest} />`
        : html`<${Between} key=${`${now.from} ${now.at}`} database=${database} from=${now.from} to=${now.at} />`
    }`;
}

const clamp = (value, low, high) => (Number.isFinite(value) ? Math.max(low, Math.min(high, value)) : high);

// The time of the last change up to a sequence: that of the document which it changed.
async function timeOf(database, at, signal) {
  const base = `/${segment(database)}`;
  const { results } = await get(`${base}/_changes`, { since: at - 1, as_of: at, limit: 1 }, { signal, quiet: true });
  if (results.length === 0) return undefined;
  const { stored } = await get(`${base}/_history/${segment(results[0].id)}`, {}, { signal, quiet: true });
  return stored.find(({ seq }) => sequence(seq) === at)?.time_us / 1000;
}

function Slider({ label, value, set, oldest, newest, database }) {
  const [when, setWhen] = useState();
  const [text, setText] = useState('');
  const [error, setError] = useState();
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(
      () => timeOf(database, value, abort.signal).then(setWhen, () => abort.signal.aborted || setWhen(undefined)),
      120,
    );
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [value]);
  const step = Math.max(1, Math.floor((newest - oldest) / STEPS));
  const jump = async (event) => {
    event.preventDefault();
    setError(undefined);
    const typed = text.trim();
    // A local time without a zone, as the console shows it.
    const local = /^\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?$/.test(typed)
      ? new Date(typed.replace(' ', 'T')).toISOString()
      : typed;
    try {
      const { update_seq: seq } = await get(`/${segment(database)}/_all_docs`, {
        limit: 0,
        update_seq: true,
        as_of: local,
      });
      set(clamp(sequence(seq), oldest, newest));
    } catch (error) {
      setError(error);
    }
  };
  return html`<div class="slider">
    <div class="row"><label class="field row"><span>${label}</span><b>
      ${value === newest ? 'now' : Number.isFinite(when) ? time(when) : `sequence ${count(value)}`}</b></label>
      <span class="soft">sequence ${count(value)}</span></div>
    <input type="range" aria-label=${`${label}: sequence`} min=${oldest} max=${newest} step=${step} value=${value}
      onInput=${(
      event,
    ) => {
      const next = Number(event.target.value);
      set(next + step > newest ? newest : next);
    }} />
    <form class="row" onSubmit=${jump}><input aria-label=${`${label}: time or how long ago`}
      placeholder="-2h, -7d, 2026-11-24 12:00" value=${text} onInput=${(event) => setText(event.target.value)} />
      <button>Go</button></form>
    <${ErrorNote} error=${error} />
  </div>`;
}

function State({ database, at, isNow }) {
  const [start, setStart] = useState();
  const [shown, setShown] = useState();
  const path = `/${segment(database)}`;
  const load = useLoad(
    async (signal) => {
      const parameters = { limit: PAGE + 1, include_docs: true, as_of: at };
      if (start) parameters.startkey = JSON.stringify(start);
      try {
        return await get(`${path}/_all_docs`, parameters, { signal, limit: 8_000_000 });
      } catch (error) {
        if (error.status !== 413) throw error;
        return get(`${path}/_all_docs`, { ...parameters, include_docs: undefined }, { signal });
      }
    },
    [at, start],
  );
  const columns = [
    { name: 'id', label: '_id', width: 220, render: ({ id }) => html`<span class="mono">${id}</span>` },
    {
      name: 'rev',
      label: '_rev',
      width: 92,
      render: ({ value }) => html`<span class="mono soft">${revision(value?.rev)}</span>`,
    },
    { name: 'doc', label: 'Contents', width: 500, render: ({ doc }) => (doc ? cell(contents(doc)) : '') },
  ];
  return html`<${Loaded} load=${load}>${({ rows, total_rows: total }) => html`
    <div class="result-head"><b>${plural(total, 'document')}</b> <span class="soft">
      ${isNow ? 'now' : 'as of then'}; open a row for its contents</span>
      <a href=${`${databaseAddress(database, 'query')}?at=${at}`}>Query this state</a></div>
    <${Table} label="Documents as of then" columns=${columns} rows=${rows.slice(0, PAGE)} rowKey=${({ id }) => id}
      onOpen=${setShown} empty="There was no document then." />
    <nav class="pager" aria-label="Pages"><span></span><button disabled=${!start}
      onClick=${() => setStart(undefined)}>First</button>
      <button disabled=${rows.length <= PAGE} onClick=${() => setStart(rows[PAGE].id)}>Next</button></nav>
    ${shown && html`<${PastDocument} database=${database} row=${shown} at=${at} close=${() => setShown()} />`}`}<//>`;
}

// A document as it was, beside what it is now.
function PastDocument({ database, row, at, close }) {
  const path = `/${segment(database)}/${segment(row.id).replace(/^_design%2F/, '_design/')}`;
  const load = useLoad(async (signal) => {
    const then = row.doc ?? (await get(path, { as_of: at }, { signal }));
    const now = await get(path, {}, { signal }).catch((error) =>
      error.status === 404 ? undefined : Promise.reject(error),
    );
    return { then, now };
  }, []);
  return html`<${Dialog} title=${row.id} onClose=${close} wide><div class="dialog-body"><${Loaded} load=${load}>${({
    then,
    now,
  }) => html`
    <${Code} label="Contents as of then" text=${stringify(contents(then), 2).slice(0, 100_000)} />
    <h2>${now ? 'Since then' : 'It is deleted now'}</h2>
    ${now && html`<${Differences} left=${contents(then)} right=${contents(now)} names=${['then', 'now']} />`}
    <div class="actions"><a class="button" href=${`${databaseAddress(database, 'doc', row.id)}?tab=stemma`}><${Icon}
      name="stemma" />Its stemma</a></div>`}<//></div><//>`;
}

// The documents that differ between two sequences, with both states.
async function compare(database, from, to, after, signal) {
  const base = `/${segment(database)}`;
  const {
    results,
    last_seq: last,
    pending,
  } = await get(`${base}/_changes`, { since: after, as_of: to, limit: COMPARED }, { signal });
  const keys = results.map(({ id }) => id);
  const states = (as_of) =>
    keys.length === 0 ? { rows: [] } : post(`${base}/_all_docs?include_docs=true&as_of=${as_of}`, { keys }, { signal });
  const [before, later] = await Promise.all([states(from), states(to)]);
  const rows = results
    .map(({ id }, at) => {
      const alive = (row) => (row?.doc && !row.value?.deleted ? row.doc : undefined);
      const [left, right] = [alive(before.rows[at]), alive(later.rows[at])];
      return { id, left, right, mark: left && right ? 'changed' : right ? 'added' : 'removed' };
    })
    .filter(({ left, right }) => left || right);
  return { rows, last, pending };
}

function Between({ database, from, to }) {
  const [found, setFound] = useState();
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const [shown, setShown] = useState();
  const more = async (signal) => {
    setBusy(true);
    try {
      const next = await compare(database, from, to, found?.last ?? from, signal);
      setFound({ ...next, rows: [...(found?.rows ?? []), ...next.rows] });
    } catch (error) {
      if (!signal?.aborted) setError(error);
    }
    setBusy(false);
  };
  useEffect(() => {
    const abort = new AbortController();
    more(abort.signal);
    return () => abort.abort();
  }, []);
  const counts = useMemo(() => {
    const counts = { added: 0, changed: 0, removed: 0 };
    for (const { mark } of found?.rows ?? []) counts[mark] += 1;
    return counts;
  }, [found]);
  const columns = [
    { name: 'mark', label: 'Change', width: 90, render: ({ mark }) => mark },
    { name: 'id', label: '_id', width: 220, render: ({ id }) => html`<span class="mono">${id}</span>` },
    {
      name: 'what',
      label: 'Contents, or the fields that differ',
      width: 500,
      render: ({ left, right }) => (left && right ? fieldsText(left, right) : cell(contents(right ?? left))),
    },
  ];
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!found) return html`<${Loading} what="Comparing" />`;
  if (found.rows.length === 0 && !found.pending) return html`<${Empty}>Nothing differs between these two times.<//>`;
  return html`<div class="result-head"><span class="counters"><span class="plus">+ ${count(counts.added)} added</span>
    <span class="tilde">~ ${count(counts.changed)} changed</span>
      <span class="minus">− ${count(counts.removed)} removed</span></span>
      ${found.pending > 0 && html`<button disabled=${busy}
        onClick=${() => more()}>Compare ${count(Math.min(found.pending, COMPARED))} more of ${count(found.pending)}
          </button>`}</div>
    <${Table} label="Differences" columns=${columns} rows=${found.rows} rowKey=${({ id }) => id}
      rowClass=${({ mark }) => mark} onOpen=${setShown} />
    ${
      shown &&
      html`<${Dialog} title=${shown.id} onClose=${() => setShown()} wide><div class="dialog-body">
      <${Differences} left=${contents(shown.left)} right=${contents(shown.right)} names=${['before', 'after']} /></div>
        <//>`
    }`;
}

const shortly = (value) => cell(value).slice(0, 40) || '–';

function fieldsText(left, right) {
  const names = new Set([...Object.keys(left), ...Object.keys(right)]);
  const differing = [...names].filter(
    (name) => !name.startsWith('_') && !isSame(own(left, name) ?? null, own(right, name) ?? null),
  );
  return (
    differing
      .map((name) => `${name}: ${shortly(own(left, name))} → ${shortly(own(right, name))}`)
      .join(', ') || 'only metadata'
  );
}
