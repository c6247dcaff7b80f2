// The documents of a database, page by page in the order of their ids, with their most common fields as columns.

import { html, useEffect, useLoad, useRef, useState } from '../lib/dom.js';
import { get, post, segment } from '../lib/api.js';
import { bytes, cell, count, revision, sequence } from '../lib/format.js';
import { own } from '../lib/json.js';
import { databaseAddress, go, setParameters } from '../lib/router.js';
import { ErrorNote, Head, Icon, Loaded } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const PAGE = 100;
const COLUMNS_MAX = 5;
// More than this is not read only to fill columns.
const VALUES_BYTES_MAX = 4_000_000;

// The paths that most documents have and that hold plain values: the columns of the list.
export async function commonPaths(database, signal) {
  try {
    const { rows } = await get(`/${segment(database)}/_paths`, {}, { signal });
    const plain = rows.filter(
      ({ path, kinds }) => !/[.[\]\\]/.test(path) && (kinds.string || kinds.number || kinds.boolean),
    );
    return plain
      .sort((left, right) => right.documents - left.documents || right.values - left.values)
      .slice(0, COLUMNS_MAX)
      .map(({ path }) => path);
  } catch {
    return [];
  }
}

async function loadPage(database, { start, prefix, backwards }, signal) {
  const range = { limit: PAGE + 1 };
  if (prefix) {
    range.startkey = JSON.stringify(prefix);
    range.endkey = JSON.stringify(`${prefix}\ufff0`);
  }
  if (backwards) {
    range.descending = true;
    [range.startkey, range.endkey] = [JSON.stringify(start), range.startkey];
    range.skip = 1;
  } else if (start) {
    range.startkey = JSON.stringify(start);
  }
  const base = `/${segment(database)}`;
  const { rows, total_rows: total } = await get(`${base}/_all_docs`, range, { signal });
  const more = rows.length > PAGE;
  const listed = rows.slice(0, PAGE);
  if (backwards) listed.reverse();
  return { rows: listed, total, more, next: !backwards && more ? rows[PAGE].id : undefined };
}

// The values of the columns, by id. Large values are not worth the wait: then the list has ids only.
async function loadValues(database, ids, paths, signal) {
  if (paths.length === 0 || ids.length === 0) return new Map();
  try {
    const body = { selector: { _id: { $in: ids } }, fields: ['_id', ...paths], limit: ids.length };
    const { docs } = await post(`/${segment(database)}/_find`, body, { signal, limit: VALUES_BYTES_MAX });
    return new Map(docs.map((doc) => [doc._id, doc]));
  } catch {
    return new Map();
  }
}

export function Documents({ database, parameters }) {
  const { start, prefix = '', back } = parameters;
  const [values, setValues] = useState(new Map());
  const [paths, setPaths] = useState([]);
  const numeric = (path) =>
    [...values.values()].every((doc) => ['number', 'undefined'].includes(typeof own(doc, path)));
  const filter = useRef();
  const info = useLoad((signal) => get(`/${segment(database)}`, {}, { signal }), [database]);
  const load = useLoad(
    (signal) => loadPage(database, { start, prefix, backwards: back === '1' }, signal),
    [database, start, prefix, back],
  );
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      const ids = load.data?.rows.map(({ id }) => id) ?? [];
      const found = await commonPaths(database, abort.signal);
      const loaded = await loadValues(database, ids, found, abort.signal);
      if (abort.signal.aborted) return;
      setPaths(found);
      setValues(loaded);
    })();
    return () => abort.abort();
  }, [load.data]);

  const columns = [
    {
      name: 'id',
      label: '_id',
      width: 220,
      render: ({ id }) => html`<a class="mono" href=${databaseAddress(database, 'doc', id)}>${id}</a>`,
    },
    {
      name: 'rev',
      label: '_rev',
      width: 92,
      render: ({ value }) => html`<span class="mono soft">${revision(value?.rev)}</span>`,
    },
    ...paths.map((path) => ({
      name: path,
      label: path,
      width: numeric(path) ? 90 : 150,
      align: numeric(path) ? 'right' : '',
      render: ({ id }) => cell(own(values.get(id), path)),
    })),
  ];
  const d = info.data;
  const facts = d
    ? [
        ['Documents', count(d.doc_count)],
        ['Deleted', count(d.doc_del_count)],
        ['On disk', bytes(d.sizes.file)],
        ['Sequence', count(sequence(d.update_seq)), d.update_seq],
      ]
    : [];
  const data = load.data;
  const rows = data?.rows ?? [];
  const hasBefore = back === '1' ? data?.more : !!start;
  const hasAfter = back === '1' || data?.next !== undefined;
  const onward = () => setParameters({ start: back === '1' ? start : data.next, back: '' });
  const find = (event) => {
    event.preventDefault();
    setParameters({ prefix: filter.current.value, start: '', back: '' });
  };
  return html`<${Head} title=${database} path=${[['Databases', '#/']]} facts=${facts}>
      <form class="inline" onSubmit=${find}><input data-slash ref=${filter} type="search"
        aria-label="Ids that begin with" placeholder="Ids that begin with …" defaultValue=${prefix} /></form>
      <a class="button primary" href=${databaseAddress(database, 'doc', '')}><${Icon} name="plus" />New document</a>
    <//>
    <${ErrorNote} error=${info.error} />
    ${
      !info.error &&
      html`<${Loaded} load=${load}>${() => html`
      <${Table} label="Documents" columns=${columns} rows=${rows} rowKey=${({ id }) => id}
        onOpen=${({ id }) => go(databaseAddress(database, 'doc', id))}
        empty=${prefix ? 'No id begins with this.' : 'There are no documents yet.'} />
      <nav class="pager" aria-label="Pages">
        <span>${rows.length > 0 ? `${count(rows.length)} of ${count(data.total)}, from ${rows[0].id}` : ''}</span>
        <button disabled=${!start} onClick=${() => setParameters({ start: '', back: '' })}>First</button>
        <button disabled=${!hasBefore}
          onClick=${() => setParameters({ start: rows[0].id, back: '1' })}>Previous</button>
        <button disabled=${!hasAfter} onClick=${onward}>Next</button>
      </nav>`}<//>`
    }`;
}
