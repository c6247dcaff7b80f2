// Views of design documents with their rows, and declared indexes.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, documentPath, ensureSession, get, post, segment } from '../lib/api.js';
import { cell, count, plural } from '../lib/format.js';
import { databaseAddress, go, setParameters } from '../lib/router.js';
import { Choice, Confirm, Empty, Field, FormDialog, Head, Icon, Loaded } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const ROWS = 200;
const STATES = { ready: 'good', failed: 'bad', building: 'busy' };

async function loadAll(database, signal) {
  const base = `/${segment(database)}`;
  const [indexes, designs, statistics] = await Promise.all([
    get(`${base}/_index`, {}, { signal }),
    get(`${base}/_design_docs`, { include_docs: true }, { signal }),
    get(`${base}/_statistics`, {}, { signal }).catch(() => undefined),
  ]);
  const views = designs.rows.flatMap(({ doc }) =>
    doc.language === 'query'
      ? []
      : Object.entries(doc.views ?? {})
          .filter(([name]) => name !== 'lib')
          .map(([name, { map, reduce }]) => ({ design: doc._id.replace('_design/', ''), name, map, reduce })),
  );
  return { indexes: indexes.indexes, views, designs: designs.rows, statistics };
}

export function Indexes({ database, parameters }) {
  const load = useLoad((signal) => loadAll(database, signal), [database]);
  const [dialog, setDialog] = useState();
  const [design, name] = (parameters.view ?? '').split('/');
  const states = (data) => new Map((data.statistics?.declared_indexes ?? []).map((index) => [index.name, index]));
  return html`<${Head} title="Views and indexes" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}>
      <a class="button" href=${databaseAddress(database, 'doc', '')}><${Icon} name="plus" />New design document</a>
      <button class="primary" onClick=${() => setDialog({ create: true })}><${Icon} name="plus" />New index</button>
    <//>
    <${Loaded} load=${load}>${(data) => html`
      <p class="soft">Every field of every document is indexed already${data.statistics ? ` (${plural(data.statistics.index.paths, 'path')})` : ''}.
        A declared index adds an order over several fields; a view, an order that a function computes.</p>
      <h2>Views</h2>
      ${
        data.views.length === 0
          ? html`<${Empty}>No design document declares a view.<//>`
          : html`<div class="table-box fit"><table aria-label="Views">
        <thead><tr><th scope="col">Design document</th><th scope="col">View</th><th scope="col">Map</th><th
          scope="col">Reduce</th></tr></thead>
        <tbody>${data.views.map(
          (view) => html`<tr key=${`${view.design}/${view.name}`}>
          <td><a class="mono" href=${databaseAddress(database, 'doc', `_design/${view.design}`)}>${view.design}</a></td>
          <td><button class="link" aria-pressed=${design === view.design && name === view.name}
            onClick=${() => setParameters({ view: `${view.design}/${view.name}` })}>${view.name}</button></td>
          <td class="mono soft">${cell(view.map)}</td><td class="mono soft">${cell(view.reduce ?? '–')}</td></tr>`,
        )}</tbody></table></div>`
      }
      ${
        name &&
        html`<${ViewRows} key=${parameters.view} database=${database} design=${design} name=${name}
        reduces=${!!data.views.find((view) => view.design === design && view.name === name)?.reduce} />`
      }
      <h2>Declared indexes</h2>
      ${
        data.indexes.length <= 1
          ? html`<${Empty}>No index is declared.<//>`
          : html`<div class="table-box fit"><table aria-label="Indexes">
        <thead><tr><th scope="col">Name</th><th scope="col">Fields</th><th scope="col">Only documents with</th><th
          scope="col">State</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
        <tbody>${data.indexes
          .filter(({ ddoc }) => ddoc)
          .map((index) => {
            const fields = index.def.fields.map((field) =>
              Object.entries(field)
                .map(([path, order]) => (order === 'desc' ? `${path} desc` : path))
                .join(', '),
            );
            const state = states(data).get(`mango:${index.def.fields.map((field) => Object.keys(field)[0]).join(',')}`);
            return html`<tr key=${`${index.ddoc}/${index.name}`}><td>${index.name}</td><td class="mono">
              ${fields.join(', ')}</td>
            <td class="mono">${index.def.partial_filter_selector ? cell(index.def.partial_filter_selector) : ''}</td>
            <td><span
              class=${`state ${STATES[state?.state ?? 'ready']}`}>
                ${state?.why ?? state?.state ?? 'ready'}</span></td>
            <td class="right"><button class="link" onClick=${() => setDialog({ remove: index })}>Delete</button></td>
              </tr>`;
          })}</tbody></table></div>`
      }
      ${dialog?.create && html`<${CreateIndex} database=${database} close=${() => setDialog()} done=${load.reload} />`}
      ${
        dialog?.remove &&
        html`<${Confirm} title="Delete index" action="Delete" onClose=${() => setDialog()} submit=${async () => {
          await ensureSession();
          const { ddoc, name } = dialog.remove;
          await ask(
            'DELETE',
            `/${segment(database)}/_index/${segment(ddoc.replace('_design/', ''))}/json/${segment(name)}`,
          );
          load.reload();
        }}><p>The index <b>${dialog.remove.name}</b> is deleted. Queries give the same results without it.</p><//>`
      }`}<//>`;
}

function CreateIndex({ database, close, done }) {
  const create = async (form) => {
    const list = form
      .get('fields')
      .split(',')
      .map((field) => field.trim())
      .filter(Boolean);
    const fields = list.map((field) => (field.endsWith(' desc') ? { [field.slice(0, -5).trim()]: 'desc' } : field));
    const body = { index: { fields }, type: 'json' };
    if (form.get('name')) body.name = form.get('name');
    await ensureSession();
    await post(`/${segment(database)}/_index`, body);
    done();
  };
  return html`<${FormDialog} title="New index" action="Create" onClose=${close} submit=${create}>
    <${Field} label="Fields" hint="Separated by commas; “year desc” for the other direction."><input name="fields"
      required autofocus autocomplete="off" spellcheck="false" placeholder="author, year desc" /><//>
    <${Field} label="Name" hint="Empty: the server makes one."><input name="name" autocomplete="off"
      spellcheck="false" /><//>
  <//>`;
}

function ViewRows({ database, design, name, reduces }) {
  const [reduce, setReduce] = useState(reduces);
  const [key, setKey] = useState('');
  const [asked, setAsked] = useState('');
  const [skip, setSkip] = useState(0);
  const path = `${documentPath(database, `_design/${design}`)}/_view/${segment(name)}`;
  const load = useLoad(
    (signal) => {
      const parameters = { limit: ROWS, skip, ...(reduce ? { group: true } : { reduce: reduces ? false : undefined }) };
      if (asked) parameters.startkey = asked;
      return get(path, parameters, { signal, limit: 8_000_000 });
    },
    [reduce, asked, skip],
  );
  const info = useLoad(
    (signal) => get(`${documentPath(database, `_design/${design}`)}/_info`, {}, { signal }),
    [design, !!load.data],
  );
  const columns = [
    {
      name: 'key',
      label: 'Key',
      width: 220,
      render: ({ key }) => html`<span class="mono">${cell(key) || '""'}</span>`,
    },
    {
      name: 'value',
      label: 'Value',
      width: 320,
      render: ({ value }) => html`<span class="mono">${cell(value)}</span>`,
    },
    ...(reduce
      ? []
      : [
          {
            name: 'id',
            label: 'Document',
            width: 220,
            render: ({ id }) => html`<a class="mono" href=${databaseAddress(database, 'doc', id)}>${id}</a>`,
          },
        ]),
  ];
  const pending = info.data?.view_index?.updates_pending?.total;
  return html`<section class="panel" aria-label=${`Rows of ${name}`}>
    <div class="panel-head"><h2>${design}/${name}</h2><div class="actions">
      ${info.data && html`<span class="soft">
        index of ${design}: ${count(info.data.view_index.rows ?? 0)} rows${pending ? `, ${count(pending)} changes behind` : ''}
          </span>`}
      ${
        reduces &&
        html`<${Choice} label="Rows" value=${reduce ? 'reduced' : 'all'} onChange=${(value) => {
          setReduce(value === 'reduced');
          setSkip(0);
        }} options=${[
          ['reduced', 'Reduced'],
          ['all', 'All rows'],
        ]} />`
      }
      <form class="row" onSubmit=${(event) => {
        event.preventDefault();
        setSkip(0);
        setAsked(key.trim() === '' ? '' : jsonKey(key.trim()));
      }}><input aria-label="Start at this key" placeholder="Start at key" value=${key}
        onInput=${(event) => setKey(event.target.value)} /><button>Go</button></form>
    </div></div>
    <${Loaded} load=${load}>${({ rows, total_rows: total }) => html`
      <div class="view-rows"><${Table} label="Rows of the view" columns=${columns} rows=${rows}
        onOpen=${reduce ? undefined : ({ id }) => go(databaseAddress(database, 'doc', id))}
          empty="The view has no rows here." /></div>
      <nav class="pager" aria-label="Pages of rows"><span>
        ${rows.length ? `${count(skip + 1)} to ${count(skip + rows.length)}${total === undefined ? '' : ` of ${count(total)}`}` : ''}
          </span>
        <button disabled=${skip === 0} onClick=${() => setSkip(Math.max(0, skip - ROWS))}>Previous</button><button
          disabled=${rows.length < ROWS} onClick=${() => setSkip(skip + ROWS)}>Next</button></nav>`}<//>
  </section>`;
}

// What was typed, as JSON: as it is if it is JSON, otherwise as a string.
function jsonKey(text) {
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}
