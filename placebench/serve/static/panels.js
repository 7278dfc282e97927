// The panels of a run that are text and tables.

import { bytes, duration, element, ink, MISSING, number, renew, seconds, share, table } from "./dom.js";

// Of more devices the rows are low, and without words in them.
const MOST_TALL = 16;
// A row is so many lanes high at most; bars of more are lower, and without words in them.
const MOST_LANES = 4;
const COMMON_STATUS = new Set(["done", "planned", "running"]);

// A word as a shell reads it.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

export function statusText(status) {
  return element("span", { class: `pill ${status}` }, status);
}

export function nowPanel(run, now, ratio) {
  const parts = [];
  for (const line of run.headlines) parts.push(element("p", { class: "headline" }, line));
  if (now?.runs) {
    const rounds = run.auto ? "" : ` of ${run.rounds}`;
    parts.push(element("p", { class: "now" }, `Round ${now.round}${rounds}, ${now.placement}: ${now.doing}`));
    const left = now.left_s === null ? "time left unknown" : `about ${duration(now.left_s)} left`;
    const silent = now.silent_s > 30 ? `, at this for ${duration(now.silent_s)}` : "";
    parts.push(element("p", {}, `Launch ${now.number} of ${run.auto ? "about " : ""}${run.of_launches}, ${duration(now.elapsed_s)} so far${silent}; ${left}.`));
  }
  if (run.status === "killed" || run.status === "interrupted") {
    const why = run.status === "killed" ? "The process that worked on this run is gone" : "This run was interrupted";
    parts.push(element("p", { class: "error" }, `${why}: what is done stays, and placebench run --resume ${quoted(run.folder)} goes on.`));
  }
  if (run.launches) {
    const done = run.launches.filter((launch) => launch.status === "done").length;
    parts.push(element("progress", { max: run.of_launches, value: done, "aria-label": "launches done" }));
    parts.push(element("p", { class: "soft" }, statusText(run.status), ` ${done} of ${run.of_launches} launches done${roundsLeft(run, ratio)}`));
  } else {
    parts.push(element("p", { class: "soft" }, statusText(run.status), run.errors.length ? "" : " shared without its raw files: its report has what there is"));
  }
  const names = { "report.html": "report", "summary.json": "numbers (JSON)", "trace.json.gz": "trace for Perfetto" };
  if (run.files.length && !now?.runs) {
    const links = run.files.flatMap((file) => [element("a", { href: `runs/${encodeURIComponent(run.id)}/${file}`, target: "_blank", rel: "noopener" }, names[file]), " · "]);
    parts.push(element("p", {}, ...links.slice(0, -1)));
  }
  for (const error of run.errors) parts.push(element("p", { class: "warning" }, error));
  return parts;
}

function roundsLeft(run, ratio) {
  if (!ratio || run.status !== "running") return "";
  if (run.auto) return `; rounds are added until the interval spans ${share(run.auto.precision)}, ${run.auto.most} at most`;
  return `; ${run.rounds - ratio.done} of ${run.rounds} rounds left`;
}

export function ratioText(ratio, soFar) {
  const lines = Object.entries(ratio.of).map(([name, rows]) => {
    const last = rows.at(-1);
    if (!last) return element("p", { class: "soft" }, `${name} against ${ratio.first}: no round is whole yet`);
    const [, value, low, high, verdict] = last;
    const ends = low === null ? "no interval before the second round" : `${number(low)} to ${number(high)}`;
    return element("p", {}, `${name} against ${ratio.first}: ${number(value)} (${ends})${soFar}, `, element("b", { class: verdict }, verdict));
  });
  return lines.length ? lines : [element("p", { class: "soft" }, `There is nothing to compare ${ratio.first} with.`)];
}

export function launchTable(run) {
  const rows = run.launches.map((launch) => [
    String(launch.round), launch.placement,
    COMMON_STATUS.has(launch.status) ? launch.status : element("b", { class: "error" }, launch.status),
    seconds(launch.step_time), String(launch.warmup), launch.error ? element("span", { class: "error" }, launch.error) : "",
  ]);
  return table(["round", "placement", "status", "step", "warm-up", "error"], rows.reverse(), [0, 3, 4]);
}

export function deviceTable(all) {
  const devices = all.filter((one) => one.id !== "controller" || one.load !== null);
  // What no device has, as CPUs have no clock, takes no room.
  const units = [["power", "power", "W"], ["clock", "SM clock", "MHz"], ["temperature", "temp.", "°C"]]
    .filter(([key]) => devices.some((one) => one[key] !== null));
  const remarks = devices.some((one) => one.error || one.clock !== null) ? ["held down by"] : [];
  const rows = devices.map((one) => [
    one.label,
    element("span", { class: "line" }, element("progress", { max: 1, value: Math.min(1, one.load ?? 0), "aria-label": "load" }), ` ${share(one.load)}`),
    bytes(one.memory), ...units.map(([key, , unit]) => (one[key] === null ? MISSING : `${number(one[key])} ${unit}`)),
    ...remarks.map(() => (one.error ? element("b", { class: "error" }, one.error) : one.held.join(", "))),
  ]);
  return table(["device", "load", "memory", ...units.map(([, head]) => head), ...remarks], rows, [2, 3, 4, 5].slice(0, 1 + units.length));
}

export function seatTable(seats) {
  const isAsked = seats.some((seat) => seat.asked.length); // of a command of which nothing is known, nothing is
  const rows = seats.map((seat) => {
    const roles = new Set(seat.seen.map((one) => one.role));
    const differs = isAsked && seat.seen.length > 0 && (seat.asked.some((role) => !roles.has(role) && role !== "reward") || [...roles].some((role) => !seat.asked.includes(role)));
    const seen = seat.seen.map((one) => `${one.role} ${share(one.share)}`).join("; ");
    const processes = seat.processes.map((one) => `${one.pid}${one.is_ours ? "" : " (of others)"}${one.memory === null ? "" : ` ${bytes(one.memory)}`}`).join(", ");
    return [seat.device, `${seat.asked.join(", ") || MISSING} (${seat.pool})`, differs ? element("b", {}, seen) : seen || MISSING, bytes(seat.memory), processes || MISSING];
  });
  return table(["device", "asked", "seen in the last steps", "memory", "processes"], rows, [3]);
}

export function queueText(found) {
  const last = (name) => found[name].at(-1);
  const rate = (name) => (last(name) === null ? MISSING : `${number(last(name))} tokens/s`);
  return element("p", {}, `Engines ${rate("engine_tokens_s")} while they generate, learners ${rate("trainer_tokens_s")} while they train;`
    + ` weights ${number(last("lag"))} ${last("lag") === 1 ? "update" : "updates"} old; ${number(last("dropped"))} sequences dropped in the last step.`);
}

export function aboutPanel(run) {
  const pools = (one) => Object.entries(one.pools).map(([pool, devices]) => {
    const roles = Object.entries(one.roles).filter(([, home]) => home === pool).map(([role]) => role).join(", ");
    return `${pool} on ${devices.join(", ")}${roles ? `: ${roles}` : ""}`;
  }).join("; ");
  const parts = [element("p", {}, element("code", {}, run.command)), element("p", { class: "soft" }, `started ${run.started}${run.ended ? `, ended ${run.ended}` : ""}`)];
  for (const one of run.placements) parts.push(element("p", {}, element("b", {}, one.name), `: ${pools(one)}; overlap ${one.overlap}${one.staleness ? `, staleness ${one.staleness}` : ""}`));
  if (run.job) parts.push(element("p", {}, `Job: ${run.job}.`));
  if (run.ray) parts.push(element("p", {}, `Ray: ${run.ray}.`));
  for (const note of run.notes) parts.push(element("p", { class: "soft" }, note));
  return parts;
}

// A step's phases on its devices. Bars that go on grow until the next word from the job.
export class Timeline {
  constructor() {
    this.element = element("div", { class: "steps" });
    this.growing = [];
    setInterval(() => this.grow(), 200);
  }

  show(underWay, finished) {
    // Room for the step under way to grow into.
    const scale = Math.max(1.25 * (underWay?.now ?? 0), 1.02 * (finished?.now ?? 0), 1e-9);
    this.growing = [];
    this.base = performance.now();
    const parts = [];
    if (underWay) parts.push(element("h3", {}, `Step ${underWay.step}, under way: ${seconds(underWay.now)} so far`), this.rows(underWay, scale));
    if (finished) parts.push(element("h3", {}, `Step ${finished.step}, the last whole one: ${seconds(finished.now)}`), this.rows(finished, scale));
    const colors = { ...underWay?.colors, ...finished?.colors };
    parts.push(element("div", { class: "key" }, ...Object.entries(colors).map(([phase, value]) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = value;
      return element("span", {}, swatch, phase);
    })));
    renew(this.element, ...parts);
  }

  rows(step, scale) {
    const rows = step.rows.flatMap(([name, bars]) => {
      const track = element("div", { class: "track" }, ...bars.map((bar) => this.bar(step, scale, ...bar)));
      track.style.setProperty("--lanes", Math.min(MOST_LANES, Math.max(1, ...bars.map(([, , , , lanes]) => lanes ?? 1))));
      return [element("span", { class: "name", title: name }, name), track];
    });
    return element("div", { class: step.rows.length > MOST_TALL ? "rows dense" : "rows", tabindex: "0" }, ...rows);
  }

  // Where processes share a device, what they do at once has lanes below each other.
  bar(step, scale, phase, start, end, lane = 0, lanes = 1) {
    const made = element("div", { class: end === null ? "bar open" : "bar", title: `${phase} ${seconds((end ?? step.now) - start)}` }, phase);
    made.style.left = `${(100 * start) / scale}%`;
    made.style.width = `${(100 * Math.max(0, (end ?? step.now) - start)) / scale}%`;
    made.style.top = `${(100 * lane) / lanes}%`;
    made.style.height = `${100 / lanes}%`;
    if (lanes > MOST_LANES) made.style.fontSize = 0;
    made.style.background = step.colors[phase];
    made.style.color = ink(step.colors[phase]);
    if (end === null) this.growing.push([step.now - start, scale]);
    return made;
  }

  grow() {
    const passed = (performance.now() - this.base) / 1000;
    // A job that is not heard of has ended, or says more soon.
    if (passed > 3) return;
    this.element.querySelectorAll(".bar.open").forEach((bar, place) => {
      const [length, scale] = this.growing[place];
      bar.style.width = `${(100 * (length + passed)) / scale}%`;
    });
  }
}
