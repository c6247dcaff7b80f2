// Queries: a Mango query with completion, its rows as table, JSON or chart, and its plan.

import { html, remember, remembered, useEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { ask, segment, withQuery } from '../lib/api.js';
import { completion, loadFields, nameBefore, stringAt, topValues } from '../lib/fields.js';
import { cell, count, microseconds, plural } from '../lib/format.js';
import { isObject, own, parse, stringify } from '../lib/json.js';
import { databaseAddress, go, setParameters } from '../lib/router.js';
import { Choice, ErrorNote, Field, FormDialog, Head, Loading, Note } from '../ui/basics.js';
import { Code, Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';
import { Builder } from './builder.js';
import { Chart } from './chart.js';
import { Fields } from './fields.js';
import { Plan } from './plan.js';

const START = '{\n  "selector": {\n    \n  },\n  "limit": 100\n}';
const COLUMNS_MAX = 12;
const JSON_ROWS_MAX = 2000;

// The columns of rows: the fields of the first ones, the most frequent first.
export function columnsOf(rows, database) {
  const counts = new Map();
  for (const row of rows.slice(0, 60))
    for (const name of Object.keys(row)) counts.set(name, (counts.get(name) ?? 0) + 1);
  const names = [...counts.keys()]
    .filter((name) => name !== '_id' && name !== '_rev')
    .sort((left, right) => counts.get(right) - counts.get(left));
  const isNumber = (name) => rows.slice(0, 60).every((row) => ['number', 'undefined'].includes(typeof own(row, name)));
  return [
    ...(counts.has('_id')
      ? [
          {
            name: '_id',
            width: 190,
            render: ({ _id }) => html`<a class="mono" href=${databaseAddress(database, 'doc', _id)}>${_id}</a>`,
          },
        ]
      : []),
    ...names
      .slice(0, COLUMNS_MAX)
      .map((name) => ({
        name,
        width: isNumber(name) ? 90 : 150,
        align: isNumber(name) ? 'right' : '',
        render: (row) => cell(own(row, name)),
      })),
  ];
}

// The completion of queries on a database, with the values of the field that is being typed, once they are loaded.
export function useCompletion(database) {
  const [fields, setFields] = useState([]);
  const [error, setError] = useState();
  const values = useRef(new Map());
  useEffect(() => {
    const abort = new AbortController();
    loadFields(database, abort.signal).then(setFields, (error) => abort.signal.aborted || setError(error));
    return () => abort.abort();
  }, [database]);
  const learn = async (name) => {
    const field = fields.find((field) => field.name === name);
    if (!field || values.current.has(name)) return;
    values.current.set(name, []);
    values.current.set(name, await topValues(database, field.path).catch(() => []));
  };
  const complete = useMemo(() => {
    const inner = completion(fields, values.current);
    return (text, at) => {
      const string = stringAt(text, at);
      if (string && !string.isName) learn(nameBefore(string.before));
      return inner(text, at);
    };
  }, [fields]);
  return { fields, complete, error, values: values.current };
}

const savedName = (database) => `queries.${database}`;

export function Query({ database, parameters }) {
  const [text, setText] = useState(parameters.q ?? START);
  const [at, setAt] = useState(parameters.at ?? '');
  const [wrong, setWrong] = useState();
  const [error, setError] = useState();
  const [result, setResult] = useState();
  const [plan, setPlan] = useState();
  const [busy, setBusy] = useState('');
  const [shown, setShown] = useState('table');
  const [saved, setSaved] = useState(remembered(savedName(database), []));
  const [dialog, setDialog] = useState(false);
  const [building, setBuilding] = useState(remembered('builder', false));
  const { fields, complete, error: fieldsError } = useCompletion(database);
  const path = `/${segment(database)}`;
  const running = useRef();

  const body = () => {
    try {
      const value = parse(text);
      if (!isObject(value)) throw new Error('A query is an object: { "selector": { … } }');
      setWrong(undefined);
      return { selector: {}, ...value };
    } catch (error) {
      setWrong(error);
      return undefined;
    }
  };
  const attempt = async (kind, act) => {
    const query = body();
    if (!query) return;
    running.current?.abort();
    const abort = new AbortController();
    running.current = abort;
    setBusy(kind);
    setError(undefined);
    setParameters({ q: text === START ? '' : text, at });
    try {
      await act(query, abort.signal);
    } catch (error) {
      if (!abort.signal.aborted) setError(error);
    }
    if (running.current === abort) setBusy('');
  };
  const run = (bookmark) =>
    attempt('run', async (query, signal) => {
      const started = performance.now();
      const found = await ask('POST', withQuery(`${path}/_find`, { as_of: at }), {
        text: stringify({ execution_stats: true, ...query, ...(bookmark ? { bookmark } : {}) }),
        signal,
      });
      setResult({
        ...found,
        query,
        page: bookmark ? result.page + 1 : 1,
        elapsed: (performance.now() - started) * 1000,
      });
      if (shown === 'plan') setShown('table');
    });
  const explain = () =>
    attempt('plan', async (query, signal) => {
      setPlan(await ask('POST', withQuery(`${path}/_explain`, { analyze: true, as_of: at }), { text: stringify(query), signal }));
      setShown('plan');
    });
  useEffect(() => {
    run();
    return () => running.current?.abort();
  }, []);

  const add = (name, value) => {
    const query = body();
    if (!query || !isObject(query.selector)) return;
    setText(stringify({ ...query, selector: { ...query.selector, [name]: value } }, 2));
  };
  const watch = () => {
    const query = body();
    if (query) go(`${databaseAddress(database, 'live')}?q=${encodeURIComponent(stringify(query.selector, 2))}`);
  };
  const build = () => {
    setBuilding(!building);
    remember('builder', !building);
  };
  const keep = (list) => {
    setSaved(list);
    remember(savedName(database), list);
  };
  const show = (view) => {
    setShown(view);
    if (view === 'plan' && !plan) explain();
  };
  const rows = result?.docs ?? [];
  const columns = useMemo(() => columnsOf(rows, database), [result]);
  const limit = result?.query.limit ?? 25;
  return html`<${Head} title="Query" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}>
      <select aria-label="Saved queries" value="" onChange=${(event) => {
        const found = saved.find(({ name }) => name === event.target.value);
        if (found) setText(found.text);
        event.target.value = '';
      }}><option value="">${saved.length ? `Saved queries (${saved.length})` : 'No saved queries'}</option>
        ${saved.map(({ name }) => html`<option value=${name}>${name}</option>`)}</select>
      <button onClick=${() => setDialog(true)}>Save as …</button>
      <button aria-expanded=${building} aria-controls="builder" onClick=${build}>Builder</button>
      <input class="as-of" aria-label="As of" title="A sequence, a time such as 2026-11-24T12:00:00Z, or -2h" placeholder="as of now"
        value=${at} onInput=${(event) => setAt(event.target.value.trim())} />
      <button onClick=${watch} title="Watch this selector as a live query">Live</button>
      <button disabled=${busy === 'plan'} onClick=${explain}>Explain</button>
      <button class="primary" disabled=${busy === 'run'} onClick=${() => run()} title="Ctrl+Enter">Run</button>
    <//>
    <div class="query-top">
      <${Editor} label="Mango query" value=${text} rows=${11} error=${wrong} complete=${complete} onRun=${() => run()}
        onChange=${(
        text,
      ) => {
        setText(text);
        setWrong(undefined);
      }} />
      <${Fields} database=${database} fields=${fields} error=${fieldsError} add=${add} />
    </div>
    ${
      building &&
      html`<${Builder} id="builder" database=${database} text=${text} fields=${fields} onRun=${() => run()}
      onChange=${(text) => {
        setText(text);
        setWrong(undefined);
      }} />`
    }
    ${wrong && html`<${Note} kind="bad">${wrong.message}<//>`}
    <${ErrorNote} error=${error} />
    <div class="result-head">
      <${Choice} label="Show the result as" value=${shown} onChange=${show} options=${[
        ['table', 'Table'],
        ['json', 'JSON'],
        ['chart', 'Chart'],
        ['plan', 'Plan'],
      ]} />
      ${busy && html`<${Loading} what=${busy === 'run' ? 'Running' : 'Explaining'} />`}
      ${
        result &&
        !busy &&
        shown !== 'plan' &&
        shown !== 'chart' &&
        html`<span class="soft">
          ${plural(rows.length, 'row')}${result.page > 1 ? `, page ${result.page}` : ''}, ${plural(
          result.execution_stats?.total_docs_examined ?? 0,
          'document',
        )} read, ${microseconds((result.execution_stats?.execution_time_ms ?? 0) * 1000)} on the server, ${microseconds(
          result.elapsed,
        )} in all</span>`
      }
      ${result && rows.length >= limit && shown !== 'plan' && shown !== 'chart' && html`<button
        onClick=${() => run(result.bookmark)}>Next page</button>`}
    </div>
    ${result?.warning && shown !== 'plan' && html`<${Note} kind="warn">${result.warning}<//>`}
    ${
      shown === 'table' &&
      result &&
      html`<${Table} key=${result.bookmark} label="Result" columns=${columns} rows=${rows} empty="No document matches."
      onOpen=${({ _id }) => _id !== undefined && go(databaseAddress(database, 'doc', _id))} />`
    }
    ${shown === 'json' && result && html`<${JsonRows} rows=${rows} />`}
    ${shown === 'chart' && html`<${Chart} database=${database} fields=${fields} selector=${body}  />`}
    ${shown === 'plan' && plan && html`<${Plan} explained=${plan} />`}
    ${!result && !plan && !busy && html`<div
      class="empty">Run a query with <kbd>Ctrl Enter</kbd>. Names, operators and values are completed as you type, or with <kbd>Ctrl Space</kbd>.</div>`}
    ${
      dialog &&
      html`<${FormDialog} title="Save query" action="Save" onClose=${() => setDialog(false)} submit=${async (form) =>
        keep([{ name: form.get('name'), text }, ...saved.filter(({ name }) => name !== form.get('name'))])}>
      <${Field} label="Name" hint="Queries are saved in this browser."><input name="name" required autofocus
        autocomplete="off" /><//>
      ${
        saved.length > 0 &&
        html`<ul class="plain-list">${saved.map(
          ({ name }) => html`<li key=${name}>${name}
        <button type="button" class="link"
          onClick=${() => keep(saved.filter((query) => query.name !== name))}>Remove</button></li>`,
        )}</ul>`
      }
    <//>`
    }`;
}

function JsonRows({ rows }) {
  const text = useMemo(
    () =>
      rows
        .slice(0, JSON_ROWS_MAX)
        .map((row) => stringify(row, 2))
        .join('\n'),
    [rows],
  );
  return html`${rows.length > JSON_ROWS_MAX && html`<${Note}>The first ${count(JSON_ROWS_MAX)} of ${count(rows.length)} rows.<//>`}
    <${Code} label="Rows as JSON" text=${text} />`;
}
