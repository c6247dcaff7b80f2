/** Stemma, an embeddable document database. Every method that reads or writes returns a promise, and waits on other
 * threads than the event loop's. */

/** What a document can have: JSON. Integers beyond `Number.MAX_SAFE_INTEGER` are BigInt. */
export type Json = null | boolean | number | bigint | string | Json[] | { [name: string]: Json };

/** Fields of a document that the database sets. */
export interface Meta {
  /** The document's id. */
  _id: string;
  /** The revision that was read. */
  _rev: string;
  /** Whether this revision is a deletion, as those of earlier states may be. */
  _deleted?: true;
  /** Its files without their contents, if it has any. */
  _attachments?: { [name: string]: Stub };
}

/** A file of a document, without its content. */
export interface Stub {
  stub: true;
  content_type: string;
  /** In bytes. */
  length: number;
  digest: string;
  revpos: number;
}

/** A document that was read: a plain object. */
export type Document<T = any> = T & Meta;

/** A document that is written. `_id` names it; `_rev` counts only for `replace`. */
export type Given<T = any> = T & { _id?: string; _rev?: string };

/** Id and revision of a write. In a transaction on a server, revisions are known only after its end. */
export interface Written {
  id: string;
  revision?: string;
}

/** A condition in Mango's form: `{year: {$gt: 1960}}`. */
export type Selector = { [name: string]: any };

/** New values of fields, or operators such as `{$inc: {reads: 1}}`. */
export type Patch = { [name: string]: any };

export type ErrorCode =
  | 'Conflict'
  | 'Duplicate'
  | 'NotFound'
  | 'Invalid'
  | 'Forbidden'
  | 'Unavailable'
  | 'Stopped'
  | 'Locked'
  | 'Corrupt'
  | 'KeyRequired'
  | 'WrongKey'
  | 'Closed'
  | 'Internal';

/** Every error of the database. */
export class StemmaError extends Error {
  constructor(code: ErrorCode, message: string, hint?: string);
  /** Its kind. */
  code: ErrorCode;
  /** What to do, if that can be said. */
  hint?: string;
}

export interface FindOptions {
  /** A path, with `-` before it for descending order; or several. */
  sort?: string | (string | { [path: string]: 'asc' | 'desc' })[];
  limit?: number;
  skip?: number;
  /** Paths: rows are plain objects with only these. */
  fields?: string | string[];
  /** The token of another page, after which this one begins. */
  after?: string;
  /** Milliseconds after which the query fails with `Stopped`. */
  timeout?: number;
}

/** A figure: the number of documents, or a function of the values at a path. */
export type Figure =
  | 'count'
  | { sum: string }
  | { average: string }
  | { min: string }
  | { max: string }
  | { distinct: string }
  | { count_distinct: string };
export type Figures = { [name: string]: Figure };

export interface Summary {
  count: number;
  sum: number | bigint | null;
  min: number | bigint | null;
  max: number | bigint | null;
}

/** A query. It runs when it is iterated over, or by one of its methods; each run reads the newest state. */
export class Find<Row = Document> implements AsyncIterable<Row> {
  private constructor();
  /** Iterates over the rows, which are read in portions. */
  [Symbol.asyncIterator](): AsyncIterableIterator<Row>;
  /** All rows. */
  toArray(): Promise<Row[]>;
  /** The first row, if there is one. */
  first(): Promise<Row | undefined>;
  /** The only row. Rejects with `NotFound` if there is none, and with `Invalid` if there are several. */
  one(): Promise<Row>;
  /** The rows, and the token with which `find(…, {after})` continues after the last one. */
  page(): Promise<{ rows: Row[]; next?: string }>;
  /** The ids of the documents. */
  ids(): Promise<string[]>;
  /** The number of documents that match, whatever the limit. Usually from the index alone. */
  count(): Promise<number>;
  /** Whether any document matches. */
  exists(): Promise<boolean>;
  /** The distinct values at a path, in order; `tags[]` stands for the elements of `tags`. */
  distinct(path: string): Promise<Json[]>;
  /** The smallest value at a path, or `null`. */
  min(path: string): Promise<Json>;
  /** The largest value at a path, or `null`. */
  max(path: string): Promise<Json>;
  /** The sum of the numbers at a path. */
  sum(path: string): Promise<number | bigint>;
  /** The average of the numbers at a path, or `null`. */
  average(path: string): Promise<number | null>;
  /** Count, sum, smallest and largest of the numbers at a path. */
  summary(path: string): Promise<Summary>;
  /** Figures of all documents that match, by name. */
  aggregate(figures: Figures): Promise<{ [name: string]: any }>;
  /** Groups the documents by the values at up to eight paths. */
  groupBy(...paths: string[]): { aggregate(figures: Figures): Promise<{ [name: string]: any }[]> };
  /** The plan; with `analyze`, after running it, with the rows and times of each step. */
  explain(options?: { analyze?: boolean }): Promise<{ text: string; tree?: any }>;
  /** Changes all documents that match, in one transaction; resolves to how many of them changed. */
  update(patch: Patch): Promise<number>;
  /** Deletes all documents that match, in one transaction; resolves to how many. */
  delete(): Promise<number>;
}

/** What can be read. */
declare class Reading {
  protected constructor();
  /** A document, or `undefined` if there is none. */
  get<T = any>(id: string): Promise<Document<T> | undefined>;
  /** Several documents as of one moment, `undefined` for those that don't exist. */
  getMany<T = any>(ids: string[]): Promise<(Document<T> | undefined)[]>;
  /** Finds documents. */
  find<T = any>(selector?: Selector, options?: FindOptions & { fields?: undefined }): Find<Document<T>>;
  /** Finds documents, and returns only some of their fields. */
  find<T = any>(selector: Selector | undefined, options: FindOptions): Find<T>;
}

/** A state of a database that doesn't change. */
export class Snapshot extends Reading {
  /** The sequence as of which it reads; `null` for a remote database. */
  sequence(): Promise<number | null>;
}

export interface InsertManyOptions {
  /** What happens to documents that exist: an error after their batch, or they are replaced, or left as they are. */
  existing?: 'error' | 'replace' | 'skip';
  /** Documents that are written together, with one flush. Default: 1,000. */
  batch?: number;
}

/** What can be written. */
declare class Writing extends Reading {
  /** Creates a document. Rejects with `Conflict` if it exists. Without an id, it gets a new one. */
  insert<T extends object>(document: Given<T>): Promise<Written>;
  insert<T extends object>(id: string, document: T): Promise<Written>;
  /** Creates or replaces a document, whatever revision it has. */
  upsert<T extends object>(document: Given<T>): Promise<Written>;
  upsert<T extends object>(id: string, document: T): Promise<Written>;
  /** Replaces a document that was read. Rejects with `Conflict` if it was written since. */
  replace<T extends object>(document: Given<T>, options?: { revision?: string }): Promise<Written>;
  /** Changes parts of a document; with `revision`, only if it is current. */
  update(id: string, patch: Patch, options?: { revision?: string }): Promise<Written>;
  /** Deletes a document; with `revision`, only if it is current. */
  delete(id: string, revision?: string): Promise<Written>;
  /** Creates the documents of an iterable, in batches; resolves to how many were written. Use a transaction for all or
   * nothing. */
  insertMany<T extends object>(
    documents: Iterable<Given<T>> | AsyncIterable<Given<T>>,
    options?: InsertManyOptions,
  ): Promise<number>;
}

/** A transaction: what its function reads and writes. */
export class Transaction extends Writing {}

/** A point in the past: a sequence, a date, or text such as `'-2h'` and `'2026-11-24T12:00:00Z'`. */
export type At = number | Date | string;

export interface Change<T = any> {
  /** The sequence of the write: pass it as `since` to continue. */
  sequence: number;
  id: string;
  /** The winning revision. */
  revision: string;
  deleted: boolean;
  /** The revisions of all branches, the winner first: more than one are a conflict. */
  leaves: string[];
  /** The document, with `documents: true`. */
  document?: Document<T>;
}

export interface ChangesOptions {
  /** A sequence, or `'now'` for new changes only. Default: all. */
  since?: number | 'now';
  /** Whether changes have their documents. */
  documents?: boolean;
  /** Only those of these documents. */
  ids?: string[];
  /** Only those of documents that match. */
  selector?: Selector;
  /** Milliseconds without a change after which it ends, for a server including the time of the request. 0 ends it after
   * the changes that a database of this process has. Default: it waits. */
  timeout?: number;
}

/** A step from one result of a live query to the next. */
export interface Delta<T = any> {
  sequence: number;
  /** Whether it is the first one, whose `added` is the whole result. */
  isFirst: boolean;
  /** The documents that match now, and did not before. */
  added: Document<T>[];
  /** The documents that still match, and were written. */
  changed: Document<T>[];
  /** The ids of those that don't match any more, or were deleted. */
  removed: string[];
}

export interface Revision<T = any> {
  document: Document<T>;
  sequence: number;
  /** When it was written, if that is known. */
  time?: Date;
  author?: string;
}

export interface Difference<T = any> {
  id: string;
  before?: Document<T>;
  after?: Document<T>;
  /** The paths that differ, if both exist. */
  paths: string[];
}

/** How much of the past is kept: a time, a number of revisions of each document, everything, or nothing. */
export type Keep = { days?: number; hours?: number; minutes?: number; seconds?: number } | number | 'everything' | null;

/** How rows of a view are chosen: one of `key`, `keys`, `prefix`, or `start` and `end`. */
export interface ViewOptions {
  key?: Json;
  keys?: Json[];
  /** The first elements of keys that are arrays. */
  prefix?: Json[];
  start?: Json;
  /** Not included. */
  end?: Json;
  descending?: boolean;
  limit?: number;
  skip?: number;
}

/** A materialized view: rows by key, which are updated when they are asked for. */
export class View {
  private constructor();
  readonly name: string;
  /** Rows in the order of their keys. */
  rows<T = any>(
    options?: ViewOptions & { documents?: boolean },
  ): Promise<{ id: string; key: any; value: any; document?: Document<T> }[]>;
  /** The reduction of the chosen rows; `null` if there are none. */
  reduce(options?: ViewOptions): Promise<any>;
  /** Key and reduction for each key, or with `level`, for the first elements of keys that are arrays. */
  groups(options?: ViewOptions & { level?: number }): Promise<[any, any][]>;
}

/** A database. */
export class Database extends Writing {
  /** The path or URL with which it was opened, without a password. */
  readonly location: string;
  readonly closed: boolean;
  /** Closes the database, and ends its feeds. Closing it again does nothing. */
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
  /** The sequence of the newest write. */
  sequence(): Promise<number>;
  /** A revision of a document that is still stored. */
  getRevision<T = any>(id: string, revision: string): Promise<Document<T> | undefined>;
  /** Runs a function as a transaction, again while other writes change what it reads. All of its writes are made at its
   * end, or none if it rejects. It may run several times, so it must have no other effects. */
  transaction<T>(work: (tx: Transaction) => Promise<T>, options?: { attempts?: number }): Promise<T>;
  /** The newest state, for several reads that must agree. */
  snapshot(): Promise<Snapshot>;
  /** The database as it was. */
  asOf(at: At): Promise<Snapshot>;
  /** The stored revisions of a document, deletions included, the newest first. */
  history<T = any>(id: string): Promise<Revision<T>[]>;
  /** The documents that differ between two points in the past. */
  differences<T = any>(start: At, end: At, selector?: Selector): Promise<Difference<T>[]>;
  /** Sets how much of the past is kept from now on. */
  keepHistory(keep: Keep): Promise<void>;
  /** Writes the last revision of a deleted document again; resolves to its new revision. */
  undelete(id: string): Promise<string>;
  /** Iterates over changes, and waits for new ones. It ends when the database is closed. */
  changes<T = any>(options?: ChangesOptions): AsyncIterableIterator<Change<T>>;
  /** Starts a live query: deltas, the first of which has the whole result. It ends when the database is closed. */
  watch<T = any>(selector?: Selector, options?: { timeout?: number }): AsyncIterableIterator<Delta<T>>;
  /** Attaches a file to a document. */
  attach(
    id: string,
    name: string,
    content: Uint8Array | string,
    options?: { contentType?: string; revision?: string },
  ): Promise<Written>;
  /** The content of an attached file, if there is one. */
  readFile(id: string, name: string): Promise<Buffer | undefined>;
  /** Removes an attached file. */
  detach(id: string, name: string, options?: { revision?: string }): Promise<Written>;
  /** Declares an index on paths; a unique one refuses two documents with the same values. Every field is indexed anyway:
   * declare one for uniqueness, for the order of several paths, or for a language. */
  createIndex(
    paths: string | string[],
    options?: { unique?: boolean; name?: string; language?: string },
  ): Promise<void>;
  indexes(): Promise<{ name: string; paths: string[]; unique: boolean }[]>;
  dropIndex(name: string): Promise<void>;
  /** Requires the documents of a collection, whose ids begin with `collection:`, to match a JSON Schema; `null` removes
   * it. */
  requireSchema(collection: string, schema: object | null): Promise<void>;
  /** Has documents expire at the time that is stored at a path: seconds since 1970, or text. */
  addExpiration(path: string, options?: { collection?: string }): Promise<void>;
  /** Has a document expire after so many milliseconds, by its expiration rule; `null`: never. */
  expire(id: string, after: number | null): Promise<void>;
  /** Defines a view, or opens it if it has this definition. */
  defineView(name: string, definition: object): Promise<View>;
  /** A view that was defined. */
  view(name: string): View;
  /** The definitions of views by name. */
  views(): Promise<{ [name: string]: any }>;
  dropView(name: string): Promise<void>;
  /** The paths that documents have, with the number of documents and of distinct values at each. */
  paths(): Promise<{ path: string; documents: number; values: number; types: { [type: string]: number } }[]>;
  /** Counts and sizes. */
  info(): Promise<{
    documents: number;
    deleted: number;
    sequence: number;
    logBytes: number;
    treeBytes: number;
    historyBytes: number;
    cacheBytes: number;
  }>;
  /** Flushes every earlier write to disk. */
  flush(): Promise<void>;
  /** Makes a backup in a directory while the database is used; later ones there add what is new. */
  backup(directory: string): Promise<void>;
  /** Checks all stored bytes and indexes; resolves to the problems found. */
  check(): Promise<string[]>;
  /** Rewrites the log without what nobody needs; resolves to the bytes that were freed. */
  compact(): Promise<number>;
}

export interface OpenOptions {
  /** When a write returns: flushed to disk (`sync`, the default), flushed at most `interval` milliseconds later, or left
   * to the operating system. */
  durability?: 'sync' | 'interval' | 'none';
  /** In milliseconds. Default: 100. */
  interval?: number;
  /** Whether a directory that doesn't exist is created. Default: true. */
  create?: boolean;
  readOnly?: boolean;
  /** The passphrase, or the 32 bytes of the key, of an encrypted database. */
  key?: string | Uint8Array;
  /** Memory for the cache. */
  cacheBytes?: number;
  /** Milliseconds that a request to a server may take. Default: 30,000. */
  timeout?: number;
}

/**
 * Opens a database: a directory, which is created if it doesn't exist, `':memory:'`, or one of a server by a URL such as
 * `stemma://user:password@host/database`.
 *
 * Rejects with `Locked` if the database is open elsewhere, `Invalid` if the directory is none, `Corrupt` if it is
 * damaged, and `Unavailable` if it can't be read or written, or the server can't be reached.
 */
export function open(location: string | URL, options?: OpenOptions): Promise<Database>;

export {};
