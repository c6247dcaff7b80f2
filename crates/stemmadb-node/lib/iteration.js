// Asynchronous iterators over what the native library returns in portions.
'use strict';

const { next } = require('./calls.js');

// Rows that are asked for at once, at first and at most.
const FIRST_COUNT = 16;
const COUNT_MAX = 512;

/**
 * An asynchronous iterator over a cursor. It may be left at any time: `return()`, or the end of `for await`, ends a
 * wait and releases what the database holds for it.
 */
class Iteration {
  #cursor;
  #items = [];
  #position = 0;
  #isDone = false;
  #count = FIRST_COUNT;
  #last = Promise.resolve();

  /** `cursor` is a promise of a native cursor. */
  constructor(cursor) {
    this.#cursor = cursor;
    // The first `next` reports it.
    cursor.catch(() => {});
  }

  next() {
    if (this.#position < this.#items.length) {
      return Promise.resolve({ done: false, value: this.#items[this.#position++] });
    }
    // One at a time: calls that are not awaited wait for each other.
    const step = this.#last.then(() => this.#read());
    this.#last = step.catch(() => {});
    return step;
  }

  async #read() {
    while (this.#position >= this.#items.length) {
      if (this.#isDone) return { done: true, value: undefined };
      try {
        const cursor = await this.#cursor;
        const [isDone, ...items] = await next(cursor, this.#count);
        this.#isDone ||= isDone;
        this.#items = items;
        this.#position = 0;
        this.#count = Math.min(2 * this.#count, COUNT_MAX);
      } catch (error) {
        this.#isDone = true;
        throw error;
      }
    }
    return { done: false, value: this.#items[this.#position++] };
  }

  async return(value) {
    this.#isDone = true;
    this.#items = [];
    this.#position = 0;
    try {
      (await this.#cursor).close();
    } catch {
      // It never started, so there is nothing to end.
    }
    return { done: true, value };
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}

module.exports = { Iteration };
