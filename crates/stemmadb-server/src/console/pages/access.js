// Who may use a database: its administrators, members and access rule.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, ensureSession, get, segment } from '../lib/api.js';
import { parse, stringify } from '../lib/json.js';
import { databaseAddress } from '../lib/router.js';
import { ErrorNote, Field, Head, Loaded, Note, useToast } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';

const list = (text) =>
  text
    .split(/[,\n]/)
    .map((name) => name.trim())
    .filter(Boolean);

export function AccessPage({ database }) {
  const path = `/${segment(database)}/_security`;
  const load = useLoad((signal) => get(path, {}, { signal }), [database]);
  return html`<${Head} title="Access" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]} />
    <${Loaded} load=${load}>${(security) => html`<${Form} key=${JSON.stringify(security)} security=${security}
      path=${path} reload=${load.reload} />`}<//>`;
}

function Form({ security, path, reload }) {
  const { admins = {}, members = {}, ...rest } = security;
  const [other, setOther] = useState(stringify(rest, 2));
  const [error, setError] = useState();
  const [toast, say] = useToast();
  const names = (part) => (part.names ?? []).join(', ');
  const roles = (part) => (part.roles ?? []).join(', ');
  const isOpen = (members.names ?? []).length === 0 && (members.roles ?? []).length === 0;
  const save = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setError(undefined);
    try {
      const body = {
        ...parse(other),
        admins: { names: list(form.get('admin-names')), roles: list(form.get('admin-roles')) },
        members: { names: list(form.get('member-names')), roles: list(form.get('member-roles')) },
      };
      await ensureSession();
      await ask('PUT', path, { text: stringify(body) });
      say('Saved.');
      reload();
    } catch (error) {
      setError(error);
    }
  };
  return html`<form class="cards" onSubmit=${save}>
    <section class="panel"><h2>Members</h2>
      ${isOpen && html`<${Note}
        kind="warn">Without members, everyone may read and write this database, also without a login.<//>`}
      <${Field} label="Names" hint="Separated by commas."><input name="member-names" defaultValue=${names(members)}
        autocomplete="off" spellcheck="false" /><//>
      <${Field} label="Roles"><input name="member-roles" defaultValue=${roles(members)} autocomplete="off"
        spellcheck="false" /><//>
    </section>
    <section class="panel"><h2>Administrators</h2>
      <p class="soft">They may change design documents, indexes and this page.</p>
      <${Field} label="Names"><input name="admin-names" defaultValue=${names(admins)} autocomplete="off"
        spellcheck="false" /><//>
      <${Field} label="Roles"><input name="admin-roles" defaultValue=${roles(admins)} autocomplete="off"
        spellcheck="false" /><//>
    </section>
    <section class="panel"><h2>Access rule and others</h2>
      <p class="soft">A rule limits members to the documents that a selector allows.</p>
      <${Editor} label="Other settings as JSON" value=${other} onChange=${setOther} rows=${7} />
    </section>
    <div class="actions"><button class="primary">Save</button><${ErrorNote} error=${error} /></div>
    ${toast}
  </form>`;
}
