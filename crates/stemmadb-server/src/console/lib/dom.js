// Preact with htm: `html` makes elements from templates. Text in templates is always text, never markup.

import { h, render, Component } from '../vendor/preact.js';
import { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from '../vendor/hooks.js';
import htm from '../vendor/htm.js';

export const html = htm.bind(h);
export { render, Component, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback };

// A value that components can subscribe to.
export function store(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      value = typeof next === 'function' ? next(value) : next;
      listeners.forEach((listener) => listener(value));
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useStore(source) {
  const [value, setValue] = useState(source.get());
  useEffect(() => {
    setValue(source.get());
    return source.subscribe(setValue);
  }, [source]);
  return value;
}

// The result of an asynchronous function, loaded again when `inputs` change: { data, error, loading, reload }. Earlier
// data is kept while newer data loads.
export function useLoad(load, inputs) {
  const [state, setState] = useState({ loading: true });
  const [round, setRound] = useState(0);
  const key = JSON.stringify(inputs);
  useEffect(() => {
    const abort = new AbortController();
    setState((state) => ({ ...(state.key === key ? state : {}), loading: true, key }));
    load(abort.signal).then(
      (data) => abort.signal.aborted || setState({ data, loading: false, key }),
      (error) => abort.signal.aborted || setState({ error, loading: false, key }),
    );
    return () => abort.abort();
  }, [key, round]);
  const fresh = state.key === key ? state : { loading: true };
  return { ...fresh, reload: useCallback(() => setRound((round) => round + 1), []) };
}

// Calls a function now and then again after each interval, only while the page is visible.
export function usePolling(call, interval, inputs) {
  useEffect(() => {
    let timer;
    let stopped = false;
    const abort = new AbortController();
    const run = async () => {
      if (!document.hidden) {
        try {
          await call(abort.signal);
        } catch {
          // The next round tries again.
        }
      }
      if (!stopped) timer = setTimeout(run, interval);
    };
    run();
    return () => {
      stopped = true;
      clearTimeout(timer);
      abort.abort();
    };
  }, inputs);
}

// A setting that this browser remembers.
export function remembered(name, initial) {
  try {
    const text = localStorage.getItem(`stemma.${name}`);
    return text === null ? initial : JSON.parse(text);
  } catch {
    return initial;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`stemma.${name}`, JSON.stringify(value));
  } catch {
    // Private windows may have no storage: the setting then lasts as long as the page.
  }
}
