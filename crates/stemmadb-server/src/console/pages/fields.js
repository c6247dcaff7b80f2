// The fields of a database beside a query: types, counts, and on demand the most frequent values.

import { html, useEffect, useState } from '../lib/dom.js';
import { kindsText, topValues } from '../lib/fields.js';
import { cell, compact, count } from '../lib/format.js';
import { ErrorNote, Loading } from '../ui/basics.js';

export function Fields({ database, fields, error, add }) {
  const [filter, setFilter] = useState('');
  const [open, setOpen] = useState();
  if (error) return html`<aside class="fields" aria-label="Fields"><${ErrorNote} error=${error} /></aside>`;
  const most = Math.max(...fields.map(({ documents }) => documents), 1);
  const shown = fields
    .filter(({ path }) => path.toLowerCase().includes(filter.toLowerCase()))
    .sort((left, right) => right.documents - left.documents || (left.path < right.path ? -1 : 1))
    .slice(0, 300);
  return html`<aside class="fields" aria-label="Fields">
    <input type="search" aria-label="Filter fields" placeholder=${`${count(fields.length)} fields`} value=${filter}
      onInput=${(event) => setFilter(event.target.value)} />
    <ul>${shown.map(
      (field) => html`<li key=${field.path}>
      <button class="field-row" aria-expanded=${open === field.path}
        onClick=${() => setOpen(open === field.path ? undefined : field.path)}>
        <span class="share" style=${{ width: `${(field.documents / most) * 100}%` }}></span>
        <span class="mono name">${field.path}</span><small>${kindsText(field)}</small><small class="number"
          title=${`in ${count(field.documents)} documents`}>${compact(field.documents)}</small>
      </button>
      ${open === field.path && html`<${Values} database=${database} field=${field} add=${add} />`}
    </li>`,
    )}</ul>
  </aside>`;
}

function Values({ database, field, add }) {
  const [values, setValues] = useState();
  useEffect(() => {
    const abort = new AbortController();
    const isPlain = field.kinds.string || field.kinds.number || field.kinds.boolean || field.kinds.null;
    if (isPlain)
      topValues(database, field.path, undefined, abort.signal).then(
        setValues,
        () => abort.signal.aborted || setValues([]),
      );
    else setValues([]);
    return () => abort.abort();
  }, [field.path]);
  const condition = (value) => (field.path.includes('[]') ? { $elemMatch: { $eq: value } } : value);
  return html`<div class="values">
    <p>${count(field.documents)} documents, ${count(field.values)} different values:
      ${' '}${Object.entries(field.kinds)
        .map(([kind, number]) => `${count(number)} × ${kind}`)
        .join(', ')}</p>
    ${!values && html`<${Loading} />`}
    ${
      values?.length > 0 &&
      html`<ul>${values.map(
        ({ value, count: number }) => html`<li key=${JSON.stringify(value)}>
      <button class="link" title="Add to the selector" onClick=${() => add(field.name, condition(value))}>
        ${value === '' ? '""' : cell(value)}</button><small>${count(number)}</small></li>`,
      )}</ul>`
    }
    <button class="link" onClick=${() => add(field.name, { $exists: true })}>Documents that have it</button>
  </div>`;
}
