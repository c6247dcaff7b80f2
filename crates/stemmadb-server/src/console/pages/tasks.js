// What the server does in the background: replications, compactions, builds of indexes and views, backups, checks.

import { html, usePolling, useState } from '../lib/dom.js';
import { get } from '../lib/api.js';
import { bytes, count, duration } from '../lib/format.js';
import { databaseAddress, go } from '../lib/router.js';
import { ErrorNote, Head, Loading } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const INTERVAL = 2000;

const host = (url) => String(url ?? '').replace(/\/\/[^@/]*@/, '//');
const KINDS = { database_compaction: 'compaction', indexer: 'index' };

// What a row of `_active_tasks` works on, and how far it is.
const subject = ({ doc_id: document, replication_id: id, view, index, target, type }) =>
  type === 'replication' ? (document ?? id) : type === 'backup' ? `to ${target}` : (view ?? index ?? '');

function detail(task) {
  const parts =
    task.type === 'replication'
      ? [
          `${host(task.source)} → ${host(task.target)}`,
          `${count(task.docs_written)} written`,
          task.changes_pending > 0 && `${count(task.changes_pending)} to go`,
        ]
      : [
          task.design_document,
          task.total_changes > 0 && `${count(task.changes_done)} of ${count(task.total_changes)}`,
          task.total_bytes > 0 && `${bytes(task.bytes_done)} of ${bytes(task.total_bytes)}`,
        ];
  return parts.filter(Boolean).join(', ');
}

async function loadTasks(signal) {
  const [active, jobs, infos] = await Promise.all([
    get('/_active_tasks', {}, { signal }),
    get('/_scheduler/jobs', {}, { signal }),
    get('/_dbs_info', {}, { signal }),
  ]);
  const now = Date.now() / 1000;
  const running = active.map((task) => ({
    kind: KINDS[task.type] ?? task.type,
    database: task.type === 'replication' ? undefined : task.database,
    name: subject(task),
    state: 'running',
    progress: task.progress,
    since: now - task.started_on,
    detail: detail(task),
    key: `a${task.pid}`,
  }));
  // Replications that wait for their next attempt.
  const failed = jobs.jobs
    .filter(({ state }) => state === 'crashing')
    .map(({ id, doc_id: document, source, target, info }) => ({
      kind: 'replication',
      name: document ?? id,
      state: 'failed',
      detail: [`${host(source)} → ${host(target)}`, info?.error].filter(Boolean).join(': '),
      key: `r${id}`,
    }));
  const backups = infos.filter(({ info }) => info?.backup).map(({ key, info }) => ({ name: key, ...info.backup }));
  return { tasks: [...running, ...failed], backups };
}

const state = ({ state }) => html`<span class=${`state ${state === 'failed' ? 'bad' : 'busy'}`}>${state}</span>`;
const progress = ({ progress }) =>
  progress === undefined
    ? ''
    : html`<div class="meter" role="img" aria-label=${`${progress} %`}><span style=${{ width: `${progress}%` }}></span>
      </div>`;
const COLUMNS = [
  { name: 'kind', label: 'Kind', width: 110 },
  {
    name: 'database',
    label: 'Database',
    width: 130,
    render: ({ database }) => database && html`<a href=${databaseAddress(database, 'settings')}>${database}</a>`,
  },
  { name: 'name', label: 'Name', width: 170 },
  { name: 'state', label: 'State', width: 90, render: state },
  { name: 'progress', label: 'Progress', width: 110, render: progress },
  { name: 'since', label: 'For', width: 80, align: 'right', render: ({ since }) => duration(Math.max(0, since)) },
  { name: 'detail', label: 'Detail', width: 320 },
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
