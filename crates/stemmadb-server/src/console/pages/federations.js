// Federations: databases of this and of other servers that are read as one.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, ensureSession, get, segment, withQuery } from '../lib/api.js';
import { cell, plural } from '../lib/format.js';
import { parse, stringify } from '../lib/json.js';
import { address } from '../lib/router.js';
import { Confirm, Empty, ErrorNote, Field, FormDialog, Head, Icon, Loaded, Note } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';

const START = {
  members: [
    { name: 'current', database: 'orders' },
    { name: 'archive', database: 'stemma://reader:secret@archive.example/orders', tags: ['old'] },
  ],
};
const QUESTION = '{"selector": {}, "limit": 25}';
const COLUMNS_MAX = 8;
// Members that take longer, in milliseconds, are left out.
const TIMEOUT = 10_000;

export function Federations({ item }) {
  const load = useLoad((signal) => get('/_federation', {}, { signal }), []);
  const [dialog, setDialog] = useState();
  const columns = [
    {
      name: 'name',
      label: 'Name',
      width: 160,
      render: ({ name }) => html`<a href=${address('federations', name)}>${name}</a>`,
    },
    {
      name: 'members',
      label: 'Members',
      width: 460,
      render: ({ members }) => members.map(({ name, database }) => `${name}: ${database}`).join(', '),
    },
    { name: 'disjoint', label: 'Documents', width: 150, render: ({ disjoint }) => (disjoint ? 'in one member' : 'in any') },
    {
      name: 'actions',
      label: html`<span class="hidden">Actions</span>`,
      width: 140,
      align: 'right',
      render: (federation) => html`<button class="link" onClick=${() => setDialog({ federation })}>Edit</button>${' '}
        <button class="link" onClick=${() => setDialog({ remove: federation })}>Delete</button>`,
    },
  ];
  return html`<${Head} title="Federations"><button class="primary" onClick=${() => setDialog({})}><${Icon}
    name="plus" />New federation</button><//>
    <p class="soft">A federation is read as one database: its queries, counts and changes are those of all members.</p>
    <${Loaded} load=${load}>${({ federations }) => html`<${Table} label="Federations" fit columns=${columns}
      rows=${Object.entries(federations).map(([name, federation]) => ({ name, ...federation }))}
      rowKey=${({ name }) => name} empty="There are no federations." />
      ${item && federations[item] && html`<${Question} key=${item} name=${item} />`}`}<//>
    ${dialog && !dialog.remove && html`<${FederationDialog} federation=${dialog.federation} close=${() => setDialog()}
      done=${load.reload} />`}
    ${
      dialog?.remove &&
      html`<${Confirm} title="Delete federation" action="Delete" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `/_federation/${segment(dialog.remove.name)}`);
        load.reload();
      }}><p>The definition of <b>${dialog.remove.name}</b> is deleted. Its members stay as they are.</p><//>`
    }`;
}

// The fields of some documents, as columns.
function columnsOf(docs) {
  const names = new Set(docs.flatMap((doc) => Object.keys(doc)));
  names.delete('_rev');
  return [...names].slice(0, COLUMNS_MAX).map((name) => ({ name, render: (doc) => cell(doc[name]) }));
}

// A query over all members. Members that fail are named beside the rows of the others.
function Question({ name }) {
  const [text, setText] = useState(QUESTION);
  const [answer, setAnswer] = useState();
  const [error, setError] = useState();
  const run = async () => {
    setError(undefined);
    try {
      const path = withQuery(`/_federation/${segment(name)}/_find`, { partial: true, timeout: TIMEOUT });
      setAnswer(await ask('POST', path, { text: stringify(parse(text)) }));
    } catch (error) {
      setError(error);
    }
  };
  return html`<section class="panel" aria-label=${`Query of ${name}`}>
    <div class="panel-head"><h2>Query of ${name}</h2><div class="actions"><button class="primary" onClick=${run}>Run
      </button></div></div>
    <${Editor} label="Query" value=${text} onChange=${setText} onRun=${run} rows=${4} />
    <${ErrorNote} error=${error} />
    ${answer?.missing?.length > 0 && html`<${Note} kind="warn">Without ${answer.missing
      .map(({ member, reason }) => `${member}: ${reason.replace(/^member `[^`]*`: /, '')}`)
      .join('; ')}<//>`}
    ${
      answer &&
      (answer.docs.length === 0
        ? html`<${Empty}>No document matches.<//>`
        : html`<p class="soft">${plural(answer.docs.length, 'document')}</p><${Table} label=${`Documents of ${name}`} fit
          columns=${columnsOf(answer.docs)} rows=${answer.docs} />`)
    }
  </section>`;
}

function FederationDialog({ federation, close, done }) {
  const { name, ...defined } = federation ?? START;
  const [body, setBody] = useState(stringify(defined, 2));
  const save = async (form) => {
    const value = parse(body);
    await ensureSession();
    await ask('PUT', `/_federation/${segment(name ?? form.get('name'))}`, { text: stringify(value) });
    done();
  };
  return html`<${FormDialog} title=${name ? `Federation ${name}` : 'New federation'} action="Save" onClose=${close}
    submit=${save} wide>
    ${!name && html`<${Field} label="Name"><input name="name" required autofocus autocomplete="off"
      spellcheck="false" /><//>`}
    ${name && html`<p class="soft">Credentials are not shown: write those of other servers again.</p>`}
    <${Editor} label="Definition" value=${body} onChange=${setBody} rows=${14} />
    <p class="soft">"disjoint": true if no document is in two members. "readers", with "names" and "roles", may ask for
      members on other servers.</p>
  <//>`;
}
