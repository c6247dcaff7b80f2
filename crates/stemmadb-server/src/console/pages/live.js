// A live query: its rows now, and each change of the result as it happens.

import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { feed, segment, withQuery } from '../lib/api.js';
import { cell, count, plural, revision } from '../lib/format.js';
import { isObject, own, parse, stringify } from '../lib/json.js';
import { databaseAddress, go, setParameters } from '../lib/router.js';
import { Head, Note } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';
import { columnsOf, useCompletion } from './query.js';

const START = '{\n  \n}';
// How long a removed row stays visible and a changed one colored.
const MARKED_MS = 2500;
// Changes that arrive within this time are drawn together.
const DRAW_MS = 100;

// The rows of a live query by id, with their marks.
class Rows {
  constructor() {
    this.rows = new Map();
    this.counts = { added: 0, changed: 0, removed: 0 };
    this.complete = false;
  }

  apply(kind, { id, rev, doc }) {
    const before = this.rows.get(id);
    const until = this.complete ? Date.now() + MARKED_MS : 0;
    if (kind === 'leave') {
      if (!before || before.mark === 'removed') return;
      this.counts.removed += 1;
      this.rows.set(id, { ...before, mark: 'removed', until });
      return;
    }
    const mark = before && before.mark !== 'removed' ? 'changed' : 'added';
    if (this.complete) this.counts[mark] += 1;
    this.rows.set(id, { id, rev, doc, mark: this.complete ? mark : '', until });
  }

  reset() {
    this.rows.clear();
    this.complete = false;
  }

  // Forgets marks and removed rows whose time is over.
  expire(now) {
    for (const [id, row] of this.rows) {
      if (!row.mark || row.until > now) continue;
      if (row.mark === 'removed') this.rows.delete(id);
      else this.rows.set(id, { ...row, mark: '' });
    }
  }
}

export function Live({ database, parameters }) {
  const [text, setText] = useState(parameters.q ?? START);
  const [selector, setSelector] = useState(parameters.q ?? '{}');
  const [wrong, setWrong] = useState();
  const [state, setState] = useState('waiting');
  const [failure, setFailure] = useState();
  const [view, setView] = useState({ rows: [], counts: { added: 0, changed: 0, removed: 0 } });
  const [paused, setPaused] = useState(false);
  const held = useRef(paused);
  held.current = paused;
  const { complete } = useCompletion(database);

  useEffect(() => {
    const rows = new Rows();
    let drawn = true;
    const touch = () => {
      drawn = false;
    };
    setFailure(undefined);
    const on = (kind) => (data) => {
      rows.apply(kind, data);
      touch();
    };
    const path = withQuery(`/${segment(database)}/_watch`, { selector });
    const stop = feed(
      path,
      {
        reset: () => rows.reset(),
        enter: on('enter'),
        change: on('change'),
        leave: on('leave'),
        state: () => {
          rows.complete = true;
          touch();
        },
        failure: (data) => setFailure(data.reason),
      },
      setState,
    );
    const timer = setInterval(() => {
      const marked = [...rows.rows.values()].some(({ mark }) => mark);
      if (held.current || (drawn && !marked)) return;
      drawn = true;
      rows.expire(Date.now());
      const shown = [...rows.rows.values()].sort((left, right) =>
        left.id < right.id ? -1 : left.id > right.id ? 1 : 0,
      );
      setView({ rows: shown, counts: { ...rows.counts }, complete: rows.complete });
    }, DRAW_MS);
    return () => {
      stop();
      clearInterval(timer);
    };
  }, [database, selector]);

  const watch = () => {
    try {
      const value = parse(text);
      if (!isObject(value)) throw new Error('A selector is an object: { "field": value }');
      setWrong(undefined);
      setSelector(stringify(value));
      setParameters({ q: text === START ? '' : text });
    } catch (error) {
      setWrong(error);
    }
  };
  const { counts } = view;
  const columns = [
    {
      name: 'id',
      label: '_id',
      width: 190,
      render: ({ id }) => html`<a class="mono" href=${databaseAddress(database, 'doc', id)}>${id}</a>`,
    },
    {
      name: 'rev',
      label: '_rev',
      width: 92,
      render: ({ rev }) => html`<span class="mono soft">${revision(rev)}</span>`,
    },
    ...columnsOf(
      view.rows.slice(0, 60).map(({ doc }) => doc),
      database,
    )
      .filter(({ name }) => name !== '_id')
      .map((column) => ({ ...column, render: ({ doc }) => cell(own(doc, column.name)) })),
  ];
  const words = { open: view.complete ? 'live' : 'reading', waiting: 'connecting', closed: 'ended' };
  return html`<${Head} title="Live query" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}>
      <span class=${`state ${state === 'open' ? 'good' : 'busy'}`} role="status">${paused ? 'paused' : words[state]}
        </span>
      <button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? 'Continue' : 'Pause'}</button>
      <button class="primary" onClick=${watch} title="Ctrl+Enter">Watch</button>
    <//>
    <${Editor} label="Selector" value=${text} rows=${5} error=${wrong} complete=${complete} onRun=${watch}
      onChange=${setText} />
    ${wrong && html`<${Note} kind="bad">${wrong.message}<//>`}
    ${failure && html`<${Note} kind="bad">${failure}<//>`}
    <div class="result-head"><b>${plural(view.rows.filter(({ mark }) => mark !== 'removed').length, 'row')}</b>
      <span class="counters" aria-live="polite"><span class="plus">+ ${count(counts.added)} added</span><span
        class="tilde">~ ${count(counts.changed)} changed</span>
        <span class="minus">− ${count(counts.removed)} removed</span></span><span
          class="soft">since you opened this page</span></div>
    <${Table} label="Rows" columns=${columns} rows=${view.rows} rowKey=${({ id }) => id} rowClass=${({ mark }) => mark}
      onOpen=${({ id }) => go(databaseAddress(database, 'doc', id))}
        empty="No document matches now. Rows appear here when one does." />`;
}
