// A builder of queries: rows of field, operator and value beside the text of the query. Each writes the other one.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../lib/dom.js';
import { topValues } from '../lib/fields.js';
import { isObject, parse, stringify } from '../lib/json.js';
import { isComplete, OPERATORS, readQuery, typesOf, writeQuery } from '../lib/mango.js';
import { Icon, Note } from '../ui/basics.js';

const FIELDS_MAX = 500;
const EMPTY = { rows: [], sort: [], limit: '', others: [] };
const TYPES = { text: 'text', number: 'number', true: 'true', false: 'false', null: 'null' };

let lastKey = 0;
const keyed = (row) => {
  lastKey += 1;
  return { ...row, key: lastKey };
};

// A query of a text, or null if the text is none.
function queryOf(text) {
  try {
    const query = parse(text);
    return isObject(query) ? query : null;
  } catch {
    return null;
  }
}

function read(query) {
  const { rows, sort, ...rest } = readQuery(query);
  return { rows: rows.map(keyed), sort: sort && sort.map(keyed), ...rest };
}

// The type that most values of a field have.
function mainType(field) {
  const [kind] = Object.entries(field.kinds).sort((left, right) => right[1] - left[1])[0] ?? [];
  return { string: 'text', number: 'number', boolean: 'true', null: 'null' }[kind] ?? 'text';
}

export function Builder({ id, database, text, fields, onChange, onRun }) {
  const [built, setBuilt] = useState(EMPTY);
  const [isReadable, setReadable] = useState(true);
  const box = useRef();
  // The text that the rows stand for.
  const written = useRef();
  const focused = useRef();

  // Before the next key, whose change would be lost otherwise.
  useLayoutEffect(() => {
    if (text === written.current) return;
    const query = queryOf(text);
    setReadable(query !== null);
    if (query === null) return;
    written.current = text;
    setBuilt(read(query));
  }, [text]);
  // After a row was added or removed.
  useLayoutEffect(() => {
    if (focused.current) box.current.querySelector(focused.current)?.focus();
    focused.current = undefined;
  }, [built]);

  const change = (part) => {
    const next = { ...built, ...part };
    setBuilt(next);
    const query = writeQuery(queryOf(text) ?? {}, next);
    written.current = stringify(query, 2);
    if (written.current !== text) onChange(written.current);
  };
  const replaced = (list, key, part) => list.map((row) => (row.key === key ? { ...row, ...part } : row));
  const changeRow = (key, part) => change({ rows: replaced(built.rows, key, part) });
  const changeSort = (key, part) => change({ sort: replaced(built.sort, key, part) });
  const remove = (name, key) => {
    focused.current = `[data-add="${name}"]`;
    change({ [name]: built[name].filter((row) => row.key !== key) });
  };
  const add = (name, row) => {
    const added = keyed(row);
    focused.current = `[data-key="${added.key}"] input`;
    change({ [name]: [...built[name], added] });
  };
  const submit = (event) => {
    event.preventDefault();
    onRun();
  };
  const { rows, sort, limit, others } = built;
  const plain = fields.filter(({ path }) => !path.includes('[]'));
  return html`<form id=${id} class="builder" aria-label="Query builder" ref=${box} onSubmit=${submit}>
    <${FieldList} id="builder-fields" fields=${fields} />
    <${FieldList} id="builder-sort-fields" fields=${plain} />
    ${!isReadable && html`<${Note} kind="warn">The text is not a query. Correct it to use the builder.<//>`}
    <fieldset disabled=${!isReadable}>
      <ol aria-label="Conditions">${rows.map(
        (row, at) => html`<${Condition} key=${row.key} row=${row} at=${at + 1} database=${database} fields=${fields}
        change=${(part) => changeRow(row.key, part)} remove=${() => remove('rows', row.key)} />`,
      )}</ol>
      <div class="row"><button type="button" data-add="rows"
        onClick=${() => add('rows', { path: '', operator: '$eq', type: 'text', text: '' })}><${Icon} name="plus" />Add condition</button>
        ${
          others.length > 0 &&
          html`<span class="soft">Only in the text: <span class="mono">${others.join(', ')}</span></span>`
        }</div>
      ${
        sort &&
        html`<ol aria-label="Sort order">${sort.map(
          (row, at) => html`<${SortField} key=${row.key} row=${row} at=${at + 1}
          change=${(part) => changeSort(row.key, part)} remove=${() => remove('sort', row.key)} />`,
        )}</ol>`
      }
      <div class="row">
        ${
          sort
            ? html`<button type="button" data-add="sort" onClick=${() => add('sort', { path: '', direction: 'asc' })}>
              <${Icon} name="plus" />Add sort field</button>`
            : html`<span class="soft">The sort order is only in the text.</span>`
        }
        ${
          limit !== null &&
          html`<label class="field row"><span>Limit</span><input class="number" type="number" min="0" step="1" value=${limit}
            onInput=${(event) => change({ limit: event.target.value })} /></label>`
        }
        <button class="primary">Run the query</button>
      </div>
    </fieldset>
  </form>`;
}

const FieldList = ({ id, fields }) => html`<datalist id=${id}>
  ${['_id', ...fields.slice(0, FIELDS_MAX).map(({ path }) => path)].map((path) => html`<option key=${path} value=${path} />`)}
</datalist>`;

const Remove = ({ what, remove }) => html`<button type="button" class="plain" aria-label=${`Remove ${what}`}
  title=${`Remove ${what}`} onClick=${remove}><${Icon} name="close" /></button>`;

function Condition({ row, at, database, fields, change, remove }) {
  const [values, setValues] = useState([]);
  const known = fields.find(({ path }) => path === row.path);
  const types = typesOf(row.operator);
  const name = `condition ${at}`;
  useEffect(() => setValues([]), [row.path]);
  const chooseField = (path) => {
    const field = fields.find((field) => field.path === path);
    // The type follows the field until there is a value.
    const type = field && row.text === '' ? mainType(field) : row.type;
    change({ path, type: types.includes(type) ? type : row.type });
  };
  const chooseOperator = (operator) => {
    const allowed = typesOf(operator);
    change({ operator, type: allowed.includes(row.type) ? row.type : allowed[0] });
  };
  const learn = () => {
    if (known && values.length === 0) topValues(database, known.path).then(setValues, () => {});
  };
  const hasText = row.type === 'text' || row.type === 'number';
  const suggested = values.map(({ value }) => value).filter((value) => typeof value === (row.type === 'number' ? 'number' : 'string'));
  return html`<li class="condition" data-key=${row.key}>
    <input aria-label=${`Field of ${name}`} list="builder-fields" placeholder="field" autocomplete="off" spellcheck="false"
      class="mono" value=${row.path} onInput=${(event) => chooseField(event.target.value)} />
    <select aria-label=${`Operator of ${name}`} value=${row.operator} onChange=${(event) => chooseOperator(event.target.value)}>
      ${OPERATORS.map(([operator, words]) => html`<option key=${operator} value=${operator}>${words}</option>`)}</select>
    <select aria-label=${`Type of ${name}`} value=${row.type} onChange=${(event) => change({ type: event.target.value })}>
      ${types.map((type) => html`<option key=${type} value=${type}>${TYPES[type]}</option>`)}</select>
    ${
      hasText
        ? html`<input aria-label=${`Value of ${name}`} list=${`builder-values-${row.key}`} placeholder="value" autocomplete="off"
          spellcheck="false" inputmode=${row.type === 'number' ? 'decimal' : undefined} value=${row.text} onFocus=${learn}
          aria-invalid=${row.path !== '' && !isComplete(row)} onInput=${(event) => change({ text: event.target.value })} />
          <datalist id=${`builder-values-${row.key}`}>${suggested.map(
            (value) => html`<option key=${String(value)} value=${String(value)} />`,
          )}</datalist>`
        : html`<span></span>`
    }
    <${Remove} what=${name} remove=${remove} />
  </li>`;
}

function SortField({ row, at, change, remove }) {
  const name = `sort field ${at}`;
  return html`<li class="condition sort" data-key=${row.key}>
    <input aria-label=${`Name of ${name}`} list="builder-sort-fields" placeholder="field" autocomplete="off" spellcheck="false"
      class="mono" value=${row.path} onInput=${(event) => change({ path: event.target.value })} />
    <select aria-label=${`Direction of ${name}`} value=${row.direction}
      onChange=${(event) => change({ direction: event.target.value })}>
      <option value="asc">ascending</option><option value="desc">descending</option></select>
    <${Remove} what=${name} remove=${remove} />
  </li>`;
}
