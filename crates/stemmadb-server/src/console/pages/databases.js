// All databases with their sizes, counts and rates.

import { html, useRef, useState, usePolling } from '../lib/dom.js';
import { ask, ensureSession, get, isAdmin, segment } from '../lib/api.js';
import { bytes, count, duration, rate, sequence } from '../lib/format.js';
import { databaseAddress, go, visited } from '../lib/router.js';
import { Confirm, ErrorNote, Field, FormDialog, Head, Icon, Loading } from '../ui/basics.js';
import { Sparkline } from '../ui/charts.js';
import { Table } from '../ui/table.js';

const INTERVAL = 2000;
const KEPT = 30;

// The rows of `_dbs_info` with writes per second since the last call, from the sequences.
function measured(rows, before, now) {
  return rows.map(({ key, info, error }) => {
    const seq = sequence(info?.update_seq);
    const last = before.get(key);
    const perSecond = last ? Math.max(0, (seq - last.seq) / ((now - last.now) / 1000)) : 0;
    const rates = [...(last?.rates ?? []), perSecond].slice(-KEPT);
    before.set(key, { seq, now, rates });
    return { name: key, info, error, rates, rate: perSecond };
  });
}

function health({ info, error }) {
  if (error) return ['bad', error];
  if (info.backup?.error) return ['bad', `backup: ${info.backup.error}`];
  if (info.compact_running) return ['busy', 'compacting'];
  return ['good', info.backup ? 'backed up' : 'ready'];
}

const COLUMNS = [
  { name: 'name', label: 'Name', width: 200, render: ({ name }) => html`<a href=${databaseAddress(name)}>${name}</a>` },
  { name: 'documents', label: 'Documents', width: 100, align: 'right', render: ({ info }) => count(info?.doc_count) },
  { name: 'deleted', label: 'Deleted', width: 84, align: 'right', render: ({ info }) => count(info?.doc_del_count) },
  { name: 'file', label: 'On disk', width: 90, align: 'right', render: ({ info }) => bytes(info?.sizes.file) },
  { name: 'active', label: 'Live data', width: 90, align: 'right', render: ({ info }) => bytes(info?.sizes.external) },
  {
    name: 'updates',
    label: 'Sequence',
    width: 100,
    align: 'right',
    render: ({ info }) => count(sequence(info?.update_seq)),
  },
  {
    name: 'rate',
    label: 'Writes',
    width: 160,
    render: ({ rates, rate: perSecond, name }) =>
      html`<div class="rate"><${Sparkline} values=${rates} label=${`Writes to ${name}`} /><span>${rate(perSecond)}
        </span></div>`,
  },
  {
    name: 'health',
    label: 'State',
    width: 150,
    render: (row) => {
      const [kind, text] = health(row);
      return html`<span class=${`state ${kind}`}>${text}</span>`;
    },
  },
];

export function Databases({ who }) {
  return isAdmin(who) ? html`<${AllDatabases} />` : html`<${NamedDatabase} who=${who} />`;
}

function AllDatabases() {
  const [rows, setRows] = useState();
  const [server, setServer] = useState();
  const [error, setError] = useState();
  const [filter, setFilter] = useState('');
  const [dialog, setDialog] = useState();
  const before = useRef(new Map());
  const load = async (signal) => {
    try {
      const [infos, up] = await Promise.all([get('/_dbs_info', {}, { signal }), get('/_up', {}, { signal })]);
      setRows(measured(infos, before.current, Date.now()));
      setServer(up);
      setError(undefined);
    } catch (error) {
      if (!signal?.aborted) setError(error);
    }
  };
  usePolling(load, INTERVAL, []);
  const shown = (rows ?? []).filter(({ name }) => name.toLowerCase().includes(filter.toLowerCase()));
  const sum = (of) => (rows ?? []).reduce((sum, { info }) => sum + (info ? of(info) : 0), 0);
  const facts = rows
    ? [
        ['Databases', count(rows.length)],
        ['Documents', count(sum((info) => info.doc_count))],
        ['On disk', bytes(sum((info) => info.sizes.file))],
        ['Writes', rate(rows.reduce((sum, row) => sum + row.rate, 0))],
        ['Up for', duration(server?.uptime)],
      ]
    : [];
  return html`<${Head} title="Databases" facts=${facts}>
      <input data-slash type="search" aria-label="Filter databases" placeholder="Filter" value=${filter}
        onInput=${(event) => setFilter(event.target.value)} />
      <button class="primary" onClick=${() => setDialog('create')}><${Icon} name="plus" />New database</button>
    <//>
    <${ErrorNote} error=${error} />
    ${!rows && !error && html`<${Loading} />`}
    ${
      rows &&
      html`<${Table} label="Databases" columns=${COLUMNS} rows=${shown} rowKey=${({ name }) => name}
      onOpen=${({ name }) => go(databaseAddress(name))}
        empty=${filter ? 'No name contains this.' : 'There is no database yet: create one.'} />`
    }
    ${dialog === 'create' && html`<${CreateDatabase} close=${() => setDialog(undefined)} />`}`;
}

function CreateDatabase({ close }) {
  const create = async (form) => {
    const name = form.get('name');
    await ensureSession();
    const query = [form.get('partitioned') && 'partitioned=true', form.get('memory') && 'memory=true']
      .filter(Boolean)
      .join('&');
    await ask('PUT', `/${segment(name)}${query ? `?${query}` : ''}`);
    go(databaseAddress(name));
  };
  return html`<${FormDialog} title="New database" action="Create" onClose=${close} submit=${create}>
    <${Field} label="Name" hint="Lower-case letters, digits and _$()+-/ ; it begins with a letter.">
      <input name="name" required autofocus autocomplete="off" spellcheck="false" /><//>
    <label class="check"><input type="checkbox" name="partitioned" />Partitioned: ids have the form partition:id</label>
    <label class="check"><input type="checkbox" name="memory" />In memory: gone when the server stops</label>
  <//>`;
}

// Only administrators may list databases: others name the one that they want.
function NamedDatabase({ who }) {
  const [name, setName] = useState('');
  const open = (event) => {
    event.preventDefault();
    if (name) go(databaseAddress(name));
  };
  return html`<${Head} title="Open a database" />
    <form class="narrow" onSubmit=${open}>
      <p>
        ${who.name ? `${who.name} may not list databases.` : 'You are not logged in.'} Name the database that you want to open.</p>
      <${Field} label="Database"><input data-slash value=${name} autocomplete="off" spellcheck="false"
        onInput=${(event) => setName(event.target.value)} required /><//>
      <button class="primary">Open</button>
    </form>`;
}

export function DeleteDatabase({ name, close }) {
  const remove = async () => {
    await ensureSession();
    await ask('DELETE', `/${segment(name)}`);
    if (visited().database === name) go('#/');
  };
  return html`<${Confirm} title="Delete database" action="Delete" word=${name} onClose=${close} submit=${remove}>
    <p>The database <b>${name}</b>, its documents and its history are deleted. Only a backup can bring them back.</p>
      <//>`;
}
