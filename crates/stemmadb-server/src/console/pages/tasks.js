// What the server does in the background: replications, compactions, indexes that are built, backups.

import { html, usePolling, useState } from '../lib/dom.js';
import { get, segment } from '../lib/api.js';
import { bytes, count, duration } from '../lib/format.js';
import { databaseAddress, go } from '../lib/router.js';
import { ErrorNote, Head, Loading } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const INTERVAL = 2000;
// Databases whose indexes are looked at in one round.
const LOOKED_AT_MAX = 200;

const host = (url) => String(url ?? '').replace(/\/\/[^@/]*@/, '//');

async function loadTasks(signal) {
  const [infos, jobs, active] = await Promise.all([
    get('/_dbs_info', {}, { signal }),
    get('/_scheduler/jobs', {}, { signal }),
    get('/_active_tasks', {}, { signal }),
  ]);
  const tasks = active.map((task) => ({
    kind: task.type,
    name: task.database ?? '',
    state: 'running',
    detail: `${task.progress ?? 0} %`,
    key: `a${task.pid}`,
  }));
  for (const job of jobs.jobs) {
    const info = job.info ?? {};
    tasks.push({
      kind: 'replication',
      name: job.database && job.doc_id ? job.doc_id : job.id,
      state: job.history?.[0]?.type === 'crashed' ? 'failed' : 'running',
      detail: [
        `${host(job.source)} → ${host(job.target)}`,
        info.docs_written !== undefined && `${count(info.docs_written)} written`,
        info.changes_pending > 0 && `${count(info.changes_pending)} to go`,
      ]
        .filter(Boolean)
        .join(', '),
      key: `r${job.id}`,
    });
  }
  const backups = [];
  for (const { key: name, info } of infos) {
    if (!info) continue;
    if (info.compact_running)
      tasks.push({
        kind: 'compaction',
        name,
        state: 'running',
        detail: `${bytes(info.sizes.file)} on disk`,
        database: name,
        key: `c${name}`,
      });
    if (info.backup) backups.push({ name, ...info.backup });
  }
  const statistics = await Promise.all(
    infos
      .slice(0, LOOKED_AT_MAX)
      .map(({ key }) => get(`/${segment(key)}/_statistics`, {}, { signal }).catch(() => undefined)),
  );
  for (const of of statistics) {
    for (const index of of?.declared_indexes ?? []) {
      if (index.state !== 'ready')
        tasks.push({
          kind: 'index',
          name: index.name,
          state: index.state === 'failed' ? 'failed' : 'running',
          detail: index.why ?? `building in ${of.db_name}`,
          database: of.db_name,
          key: `i${of.db_name}${index.name}`,
        });
    }
  }
  return { tasks, backups, databases: infos.map(({ key }) => key) };
}

const state = ({ state }) => html`<span class=${`state ${state === 'failed' ? 'bad' : 'busy'}`}>${state}</span>`;
const COLUMNS = [
  { name: 'kind', label: 'Kind', width: 120 },
  { name: 'name', label: 'Name', width: 200 },
  { name: 'state', label: 'State', width: 110, render: state },
  { name: 'detail', label: 'Detail', width: 420 },
];
const BACKUP_COLUMNS = [
  {
    name: 'name',
    label: 'Database',
    width: 160,
    render: ({ name }) => html`<a href=${databaseAddress(name, 'settings')}>${name}</a>`,
  },
  {
    name: 'running',
    label: 'State',
    width: 120,
    render: ({ running, error }) =>
      html`<span class=${`state ${error ? 'bad' : running ? 'good' : 'busy'}`}>
        ${error ? 'failing' : running ? 'running' : 'stopped'}</span>`,
  },
  {
    name: 'lag',
    label: 'Behind',
    width: 160,
    render: ({ lag_seconds: seconds, lag_sequences: changes }) => `${duration(seconds)}, ${count(changes)} changes`,
  },
  { name: 'backup', label: 'Last', width: 80, align: 'right', render: ({ backup }) => count(backup) },
  { name: 'target', label: 'Target', width: 300 },
  { name: 'error', label: 'Error', width: 260, render: ({ error }) => error ?? '' },
];

export function Tasks() {
  const [data, setData] = useState();
  const [error, setError] = useState();
  usePolling(
    async (signal) => {
      try {
        setData(await loadTasks(signal));
        setError(undefined);
      } catch (error) {
        if (!signal.aborted) setError(error);
      }
    },
    INTERVAL,
    [],
  );
  return html`<${Head} title="Tasks and backups" facts=${
    data
      ? [
          ['Running', count(data.tasks.filter(({ state }) => state === 'running').length)],
          ['Failed', count(data.tasks.filter(({ state }) => state === 'failed').length)],
          ['Continuous backups', count(data.backups.length)],
        ]
      : []
  } />
    <${ErrorNote} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${
      data &&
      html`
      <h2>Running</h2>
      <${Table} label="Tasks" fit columns=${COLUMNS} rows=${data.tasks} rowKey=${({ key }) => key}
        empty="Nothing runs in the background."
        onOpen=${({ database }) => database && go(databaseAddress(database, 'settings'))} />
      <h2>Continuous backups</h2>
      <${Table} label="Continuous backups" fit columns=${BACKUP_COLUMNS} rows=${data.backups}
        rowKey=${({ name }) => name} empty="No database is backed up continuously." />
      <p class="soft">A single backup of a database is made on its page “Size and care”. A continuous one:
        POST /{db}/_backup with {"continuous": true}.</p>`
    }`;
}
