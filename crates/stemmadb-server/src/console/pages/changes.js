// The changes feed: the last changes, and new ones as they happen.

import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { feed, get, segment, withQuery } from '../lib/api.js';
import { count, revision, sequence, time } from '../lib/format.js';
import { databaseAddress, go } from '../lib/router.js';
import { ErrorNote, Head, Loading } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const PAST = 500;
const KEPT_MAX = 20_000;
const DRAW_MS = 100;

const rowClass = ({ deleted, arrived }) =>
  deleted ? 'removed' : arrived && Date.now() - arrived < 3000 ? 'added' : '';

export function Changes({ database }) {
  const [rows, setRows] = useState();
  const [error, setError] = useState();
  const [state, setState] = useState('waiting');
  const [following, setFollowing] = useState(true);
  const [filter, setFilter] = useState('');
  const waiting = useRef([]);
  const held = useRef(false);
  held.current = !following;

  useEffect(() => {
    const abort = new AbortController();
    let stop = () => {};
    const path = `/${segment(database)}/_changes`;
    const timer = setInterval(() => {
      if (waiting.current.length === 0 || held.current) return;
      const fresh = waiting.current.splice(0).reverse();
      setRows((rows) => [...fresh, ...rows].slice(0, KEPT_MAX));
    }, DRAW_MS);
    get(path, { descending: true, limit: PAST, style: 'all_docs' }, { signal: abort.signal }).then(
      ({ results }) => {
        setRows(results);
        // The newest is the first row; an empty feed starts at the beginning.
        const since = results[0]?.seq ?? '0';
        const follow = withQuery(path, { feed: 'eventsource', since, style: 'all_docs', heartbeat: 20000 });
        stop = feed(
          follow,
          {
            message: (row) => {
              if (row?.id === undefined) return;
              waiting.current.push({ ...row, arrived: Date.now() });
              if (waiting.current.length > KEPT_MAX) waiting.current.splice(0, waiting.current.length - KEPT_MAX);
            },
          },
          setState,
        );
      },
      (error) => abort.signal.aborted || setError(error),
    );
    return () => {
      abort.abort();
      stop();
      clearInterval(timer);
    };
  }, [database]);

  const columns = [
    { name: 'seq', label: 'Sequence', width: 90, align: 'right', render: ({ seq }) => count(sequence(seq)) },
    {
      name: 'id',
      label: '_id',
      width: 260,
      render: ({ id }) => html`<a class="mono" href=${databaseAddress(database, 'doc', id)}>${id}</a>`,
    },
    {
      name: 'kind',
      label: 'Change',
      width: 110,
      render: ({ deleted, changes }) =>
        deleted ? 'deleted' : changes[0]?.rev.startsWith('1-') ? 'created' : 'updated',
    },
    {
      name: 'rev',
      label: 'Leaf revisions',
      width: 220,
      render: ({ changes }) => html`<span class="mono">${changes.map(({ rev }) => revision(rev)).join(', ')}</span>`,
    },
    { name: 'arrived', label: 'Seen here', width: 170, render: ({ arrived }) => (arrived ? time(arrived) : '') },
  ];
  const shown = (rows ?? []).filter(({ id }) => id.includes(filter));
  const facts = rows?.length ? [['Sequence', count(sequence(rows[0].seq)), rows[0].seq]] : [];
  return html`<${Head} title="Changes" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]} facts=${facts}>
      <input data-slash type="search" aria-label="Filter by id" placeholder="Ids that contain …" value=${filter}
        onInput=${(event) => setFilter(event.target.value)} />
      <span class=${`state ${state === 'open' ? 'good' : 'busy'}`} role="status">
        ${!following ? 'paused' : state === 'open' ? 'live' : 'connecting'}</span>
      <button aria-pressed=${!following} onClick=${() => setFollowing(!following)}>${following ? 'Pause' : 'Continue'}
        </button>
    <//>
    <${ErrorNote} error=${error} />
    ${!rows && !error && html`<${Loading} />`}
    ${
      rows &&
      html`<${Table} label="Changes" columns=${columns} rows=${shown} rowKey=${({ seq }) => seq}
      rowClass=${rowClass}
      onOpen=${({ id }) => go(databaseAddress(database, 'doc', id))} empty="Nothing was ever written here." />`
    }
    <p class="soft">A document appears once, at its newest change. The last ${count(PAST)} changes are listed,
      and those that happen while this page is open.</p>`;
}
