// Roles with statements: what users and tokens with a role may do in databases of which they are no members.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, ensureSession, get, segment } from '../lib/api.js';
import { parse, stringify } from '../lib/json.js';
import { Confirm, Field, FormDialog, Head, Icon, Loaded } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';

const START = { statements: [{ database: 'shop', documents: ['orders/#'], actions: ['read'] }] };

const text = ({ database, documents, keys, actions }) =>
  [
    actions.join(' and '),
    [documents && `documents ${documents.join(', ')}`, keys && `keys ${keys.join(', ')}`].filter(Boolean).join(' and ') ||
      'everything',
    `in ${database === '*' ? 'all databases' : database}`,
  ].join(' ');

export function Roles() {
  const load = useLoad((signal) => get('/_roles', {}, { signal }), []);
  const [dialog, setDialog] = useState();
  const columns = [
    {
      name: 'name',
      label: 'Role',
      width: 160,
      render: (role) => html`<button class="link" onClick=${() => setDialog({ role })}>${role.name}</button>`,
    },
    { name: 'may', label: 'May', width: 520, render: ({ statements }) => statements.map(text).join('; ') },
    {
      name: 'remove',
      label: html`<span class="hidden">Actions</span>`,
      width: 80,
      align: 'right',
      render: (role) => html`<button class="link" onClick=${() => setDialog({ remove: role })}>Delete</button>`,
    },
  ];
  return html`<${Head} title="Roles"><button class="primary" onClick=${() => setDialog({})}><${Icon}
    name="plus" />New role</button><//>
    <p class="soft">A role needs statements only to allow more than being a member of databases does.</p>
    <${Loaded} load=${load}>${({
      roles,
    }) => html`<${Table} label="Roles" columns=${columns}
      rows=${Object.entries(roles).map(([name, role]) => ({ name, ...role }))}
      rowKey=${({ name }) => name} onOpen=${(role) => setDialog({ role })} empty="No role has statements." />`}<//>
    ${dialog && !dialog.remove && html`<${RoleDialog} role=${dialog.role} close=${() => setDialog()}
      done=${load.reload} />`}
    ${
      dialog?.remove &&
      html`<${Confirm} title="Delete role" action="Delete" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `/_roles/${segment(dialog.remove.name)}`);
        load.reload();
      }}><p>The statements of <b>${dialog.remove.name}</b> are deleted. Users keep the role's name.</p><//>`
    }`;
}

function RoleDialog({ role, close, done }) {
  const [body, setBody] = useState(stringify(role ? { statements: role.statements } : START, 2));
  const save = async (form) => {
    const value = parse(body);
    await ensureSession();
    await ask('PUT', `/_roles/${segment(role?.name ?? form.get('name'))}`, { text: stringify(value) });
    done();
  };
  return html`<${FormDialog} title=${role ? `Role ${role.name}` : 'New role'} action="Save" onClose=${close}
    submit=${save} wide>
    ${!role && html`<${Field} label="Name"><input name="name" required autofocus autocomplete="off"
      spellcheck="false" /><//>`}
    <${Editor} label="Statements" value=${body} onChange=${setBody} rows=${12} />
  <//>`;
}
