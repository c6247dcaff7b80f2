// Numbers, sizes, times and revisions as text.

const plain = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

export const count = (value) => (Number.isFinite(value) ? plain.format(value) : '–');
export const compact = (value) => (Number.isFinite(value) ? short.format(value) : '–');

export function bytes(value) {
  if (!Number.isFinite(value)) return '–';
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Number(value.toFixed(1))} ${units[unit]}`;
}

export function rate(value) {
  if (!Number.isFinite(value)) return '–';
  return value === 0 ? '0/s' : `${value >= 10 ? compact(Math.round(value)) : value.toFixed(1)}/s`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function microseconds(value) {
  if (!Number.isFinite(value)) return '–';
  if (value < 1000) return `${Math.round(value)} µs`;
  return value < 1e6 ? `${(value / 1000).toFixed(1)} ms` : `${(value / 1e6).toFixed(2)} s`;
}

const two = (number) => String(number).padStart(2, '0');

// A local time as `2026-11-27 14:03:09`.
export function time(ms) {
  if (!Number.isFinite(ms)) return 'unknown';
  const date = new Date(ms);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function ago(ms, now = Date.now()) {
  const seconds = Math.round((now - ms) / 1000);
  return !Number.isFinite(seconds) ? '' : seconds < 2 ? 'now' : `${duration(seconds)} ago`;
}

// `3-b4fd2d9e…` as `3-b4fd2d`.
export function revision(rev) {
  const [generation, hash = ''] = String(rev ?? '').split('-');
  return hash ? `${generation}-${hash.slice(0, 6)}` : generation;
}

// The number of a sequence such as `17-5ee490a3`.
export const sequence = (seq) => Number.parseInt(String(seq ?? 0), 10) || 0;

// A value on one line, for a cell of a table.
const CELL_MAX = 200;
export function cell(value) {
  if (value === undefined) return '';
  if (typeof value === 'string') return value.length > CELL_MAX ? `${value.slice(0, CELL_MAX)}…` : value;
  if (value === null || typeof value !== 'object') return String(value);
  let room = CELL_MAX;
  const walk = (value) => {
    if (room <= 0) return '…';
    if (typeof value === 'string') {
      const shown = JSON.stringify(value.length > room ? `${value.slice(0, room)}…` : value);
      room -= shown.length;
      return shown;
    }
    if (value === null || typeof value !== 'object') {
      room -= 4;
      return String(value);
    }
    const isArray = Array.isArray(value);
    const parts = [];
    for (const key of isArray ? value.keys() : Object.keys(value)) {
      if (room <= 0) {
        parts.push('…');
        break;
      }
      room -= 2 + (isArray ? 0 : key.length);
      parts.push(isArray ? walk(value[key]) : `${key}: ${walk(value[key])}`);
    }
    return isArray ? `[${parts.join(', ')}]` : `{${parts.join(', ')}}`;
  };
  return walk(value);
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
