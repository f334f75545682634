"use strict";
// Reads data.json every second and shows it. All text goes in as text: names can hold anything.

const PERIOD_MS = 1000;
const HISTORY = 120; // points of a chart
const WINDOW = 10; // periods that latencies of the last seconds are taken over

const RATES = [
  ["operations", "operations a second", count],
  ["commits", "commits a second", count],
  ["syncs", "sync calls a second", count],
  ["device_written_bytes", "written a second", size],
  ["device_read_bytes", "read a second", size],
  ["device_flushes", "flushes a second", count],
];
const ROOM = [
  ["not durable yet", d => [d.dirty_bytes, d.dirty_limit_bytes, size]],
  ["log", d => [d.log_frames_used, d.log_frames, count]],
  ["volume", d => d.space && [d.space.size_bytes - d.space.free_bytes, d.space.size_bytes, size]],
  ["inodes", d => d.space && [d.space.inodes - d.space.free_inodes, d.space.inodes, count]],
];
const RULES = {
  file: "both changed the file",
  name: "same name in the directory",
  directory: "the directory was made or its rights changed",
  removal: "the directory's entries changed before",
  move: "both move directories",
  barrier: "a barrier stands between",
};

const past = []; // answers, the newest last
const charts = new Map(); // name -> numbers
const place = id => document.getElementById(id);

function element(kind, text, name) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function count(n) {
  return n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
}

function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (unit + 1 < units.length && bytes >= 1024) { bytes /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

function time(us) {
  if (us === null) return "-";
  if (us < 1000) return `${Math.round(us)} us`;
  return us < 1e6 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

function row(cells) {
  const made = element("tr");
  for (const cell of cells) made.append(element("td", cell));
  return made;
}

function card(title) {
  const made = element("div", undefined, "card");
  made.append(element("h3", title), element("p", "-"));
  return made;
}

function chart(numbers) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${HISTORY} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const most = Math.max(1, ...numbers);
  const first = HISTORY - numbers.length;
  line.setAttribute("points", numbers.map((n, i) => `${first + i},${19 - 18 * n / most}`).join(" "));
  svg.append(line);
  return svg;
}

// The upper end of the bucket in which that part of the calls is; null without any.
function quantile(counts, ends, part) {
  const all = counts.reduce((a, b) => a + b, 0);
  if (all === 0) return null;
  let below = 0;
  for (let i = 0; i < counts.length; i += 1) {
    below += counts[i];
    if (below >= part * all) return i < ends.length ? ends[i] : Infinity;
  }
  return Infinity;
}

function showRates(now, before) {
  const seconds = before ? (now.time_ms - before.time_ms) / 1000 : 0;
  const cards = place("rates");
  RATES.forEach(([name, title, shown], i) => {
    const made = cards.children[i] || cards.appendChild(card(title));
    const numbers = charts.get(name) || [];
    if (seconds > 0) {
      const grown = now.counters[name] - before.counters[name];
      numbers.push(Math.max(0, grown / seconds));
      made.children[1].textContent = shown(numbers[numbers.length - 1]);
    }
    charts.set(name, numbers.slice(-HISTORY));
    if (made.children[2]) made.children[2].remove();
    made.append(chart(charts.get(name)));
  });
}

function showLatencies(now, earlier) {
  const kinds = [["sync calls", "sync_latency"], ["commits", "commit_latency"]];
  place("latencies").replaceChildren(...kinds.map(([title, key]) => {
    const h = now[key];
    const recent = h.counts.map((n, i) => n - (earlier ? earlier[key].counts[i] : n));
    const sum = counts => counts.reduce((a, b) => a + b, 0);
    const ends = part => {
      const end = quantile(recent, h.up_to_us, part);
      return end === Infinity ? `above ${time(h.up_to_us[h.up_to_us.length - 1])}` : time(end);
    };
    const all = sum(h.counts);
    const mean = all === 0 ? null : h.sum_us / all;
    return row([title, count(sum(recent)), ends(.5), ends(.99), count(all), time(mean)]);
  }));
}

function showRoom(now) {
  const cards = place("room");
  ROOM.forEach(([title, of], i) => {
    const made = cards.children[i] || cards.appendChild(card(title));
    const numbers = of(now);
    if (!numbers) { made.children[1].textContent = "-"; return; }
    const [used, all, shown] = numbers;
    made.children[1].textContent = `${shown(used)} of ${shown(all)}`;
    const meter = made.children[2] || made.appendChild(element("meter"));
    meter.setAttribute("aria-label", title);
    meter.max = Math.max(1, all);
    meter.value = used;
  });
}

function showStreams(now) {
  const names = new Map(now.streams.map(s => [s.id, s.name]));
  const called = id => names.get(id) || (id === 1 ? "default" : id === 0 ? "ccfs" : String(id));
  const rows = now.streams.map(s => {
    const waits = s.dependencies.map(d => `${called(d.stream)} (${RULES[d.rule] || d.rule})`);
    const ignores = s.ignore_fsync ? " (ignores fsync)" : "";
    return row([
      called(s.id) + ignores,
      s.committing ? `${count(s.running_operations)}+${s.committing}` : count(s.running_operations),
      size(s.running_bytes),
      s.running_operations ? `${(s.age_ms / 1000).toFixed(1)} s` : "-",
      count(s.commits),
      s.commits ? time(s.latency_us_mean) : "-",
      waits.join(", ") || "-",
    ]);
  });
  place("streams").replaceChildren(...rows);
}

function showReasons(now) {
  const reasons = Object.entries(now.commits_by_reason).filter(([, n]) => n > 0);
  const rows = reasons.map(([name, n]) => row([name, count(n)]));
  place("reasons").replaceChildren(...(rows.length ? rows : [row(["none yet", "-"])]));
}

function showHealth(now) {
  const title = now.label ? `${now.mountpoint} (${now.label})` : now.mountpoint;
  place("volume").textContent = title;
  document.title = `${now.health === "ok" ? "" : `${now.health}: `}${title} - ccfs`;
  place("health").textContent = now.health;
  place("health").className = now.health === "ok" ? "good" : "bad";
  place("advice").replaceChildren(...now.advice.map(a =>
    element("li", `${a.what}; ${a.next}`, a.is_hint ? "hint" : "")));
}

function gone(why) {
  place("health").textContent = why;
  place("health").className = "bad";
  document.title = `${why} - ccfs`;
  past.length = 0;
}

async function look() {
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) {
      gone((await answer.text()).trim());
    } else {
      const now = await answer.json();
      past.push(now);
      if (past.length > WINDOW + 1) past.shift();
      showHealth(now);
      showRates(now, past[past.length - 2]);
      showLatencies(now, past.length > 1 ? past[0] : undefined);
      showRoom(now);
      showStreams(now);
      showReasons(now);
    }
  } catch {
    gone("ccfs metrics does not answer any more");
  }
  setTimeout(look, PERIOD_MS);
}

look();
