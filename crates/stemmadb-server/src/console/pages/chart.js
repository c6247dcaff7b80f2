// A chart of everything that a query's selector matches, computed by the server: a figure by a field.

import { html, useEffect, useState } from '../lib/dom.js';
import { ask, segment } from '../lib/api.js';
import { cell, compact, count } from '../lib/format.js';
import { stringify } from '../lib/json.js';
import { Empty, ErrorNote, Loading, Note } from '../ui/basics.js';
import { Bars, Columns } from '../ui/charts.js';

const FIGURES = [
  ['count', 'Number of documents'],
  ['sum', 'Sum of'],
  ['average', 'Average of'],
  ['min', 'Minimum of'],
  ['max', 'Maximum of'],
];
const GROUPS_MAX = 400;
const BARS_MAX = 40;

// How far the number of a field's values is from one that makes a good chart.
const far = ({ values }) => Math.abs(Math.log(values / 10));

export function Chart({ database, fields, selector }) {
  const plain = fields.filter(({ kinds }) => kinds.string || kinds.number || kinds.boolean);
  const numeric = fields.filter(({ kinds }) => kinds.number);
  const [by, setBy] = useState('');
  const [figure, setFigure] = useState('count');
  const [of, setOf] = useState('');
  const [rows, setRows] = useState();
  const [error, setError] = useState();
  const path =
    by ||
    plain
      .filter(({ values }) => values > 1)
      .sort((left, right) => right.documents - left.documents || far(left) - far(right))[0]?.path;
  const measured = of || numeric[0]?.path;
  useEffect(() => {
    const query = selector();
    if (!path || !query || (figure !== 'count' && !measured)) return undefined;
    const abort = new AbortController();
    setRows(undefined);
    setError(undefined);
    const body = {
      selector: query.selector,
      group_by: path,
      figures: { value: figure === 'count' ? 'count' : { [figure]: measured } },
      order_by: 'value',
      descending: true,
      limit: GROUPS_MAX,
    };
    ask('POST', `/${segment(database)}/_aggregate`, {
      text: stringify(body),
      signal: abort.signal,
      limit: 4_000_000,
    }).then(
      (answer) =>
        setRows(
          answer.rows
            .filter(({ value }) => typeof value.value === 'number')
            .map(({ key, value }) => ({ key, value: value.value })),
        ),
      (error) => abort.signal.aborted || setError(error),
    );
    return () => abort.abort();
  }, [path, figure, measured]);
  const shownMax = rows?.length > 0 && typeof rows[0].key === 'number' ? GROUPS_MAX - 1 : BARS_MAX;
  const numbers = rows?.length > 0 && rows.every(({ key }) => typeof key === 'number');
  const name = figure === 'count' ? 'Documents' : `${figure} of ${measured}`;
  const select = (
    label,
    value,
    options,
    set,
  ) => html`<label class="field row"><span>${label}</span><select aria-label=${label} value=${value}
    onChange=${(event) => set(event.target.value)}>
    ${options.map(([name, text]) => html`<option value=${name}>${text}</option>`)}</select></label>`;
  return html`<section aria-label="Chart">
    <div class="row">${select('Show', figure, FIGURES, setFigure)}
      ${
        figure !== 'count' &&
        select(
          'of',
          measured,
          numeric.map(({ path }) => [path, path]),
          setOf,
        )
      }
      ${select(
        'by',
        path,
        plain.map(({ path }) => [path, path]),
        setBy,
      )}</div>
    <${ErrorNote} error=${error} />
    ${!path && html`<${Empty}>There is no field to group by.<//>`}
    ${path && !rows && !error && html`<${Loading} what="Computing" />`}
    ${rows?.length === 0 && html`<${Empty}>Nothing matches.<//>`}
    ${numbers && html`<${Columns} label=${`${name} by ${path}`} rows=${rows} />`}
    ${
      rows?.length > 0 &&
      !numbers &&
      html`<${Bars} label=${`${name} by ${path}`}
        unit=${(value) => (figure === 'count' ? count(value) : compact(value))}
      rows=${rows.slice(0, BARS_MAX).map(({ key, value }) => ({ label: key === null ? 'null' : cell(key), value }))} />`
    }
    ${rows?.length > shownMax && html`<${Note}>The largest ${count(shownMax)} groups.<//>`}
  </section>`;
}
