// The live page: a list of runs, or one run, told by server-sent events.

import { Chart, showDevices, showQueue, showRatio, showSteps } from "./charts.js";
import { element, renew, table } from "./dom.js";
import { aboutPanel, deviceTable, launchTable, nowPanel, queueText, ratioText, seatTable, statusText, Timeline } from "./panels.js";

const MOST_LINES = 1000;
const [main, title, connection] = ["main", "title", "connection"].map((id) => document.getElementById(id));
let source = null;

function open() {
  source?.close();
  const id = asked();
  title.textContent = id;
  document.title = id ? `${id} – placebench` : "placebench";
  const view = id ? new RunView(id) : new ListView();
  main.replaceChildren(view.element);
  source = new EventSource(id ? `runs/${encodeURIComponent(id)}/events` : "events");
  source.onmessage = (event) => {
    say("live");
    view.take(JSON.parse(event.data));
  };
  source.addEventListener("end", () => {
    source.close();
    say("the server has ended; placebench serve shows the page again", true);
  });
  source.onopen = () => say("live");
  source.onerror = () => {
    const ended = source.readyState === EventSource.CLOSED;
    say(ended ? "not answered: is there such a run, and is the link the newest?" : "no answer: the server has ended, or the connection is lost; placebench serve shows the page again", true);
  };
}

// The run that the address names; none where it is nothing that was encoded.
function asked() {
  try {
    return decodeURIComponent(location.hash.replace(/^#\/?/, ""));
  } catch {
    return "";
  }
}

function say(text, lost = false) {
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle("lost", lost);
}

class ListView {
  constructor() {
    this.element = element("section", { class: "list" }, element("p", { class: "soft" }, "Reading…"));
  }

  take({ runs, only }) {
    if (only) {
      location.replace(`#/${encodeURIComponent(only)}`);
      return;
    }
    title.textContent = "Runs";
    const rows = runs.map((run) => [
      element("a", { href: `#/${encodeURIComponent(run.id)}` }, run.name),
      element("span", { class: "line" }, run.started.slice(0, 16).replace("T", " ")), statusText(run.status), `${run.done}/${run.launches}`, run.placements.join(", "),
      Object.entries(run.verdicts).map(([name, one]) => `${name} ${one.verdict} ${one.value.toFixed(2)}`).join(", ") || run.error || "",
    ]);
    const heads = ["run", "started (UTC)", "status", "launches", "placements", "step time"];
    renew(this.element, rows.length ? table(heads, rows, [3]) : element("p", {}, "There is no run yet: placebench run starts one."));
  }
}

class RunView {
  constructor(id) {
    this.id = id;
    this.state = { series: { steps: {}, devices: {}, queue: {} } };
    this.charts = { steps: new Chart("step times"), ratio: new Chart("ratio of step times"), devices: new Chart("devices"), queue: new Chart("queue", 180) };
    this.timeline = new Timeline();
    this.quantity = element("select", { "aria-label": "quantity", onchange: () => this.drawDevices() },
      ...["load", "memory", "power", "clock"].map((name) => element("option", { value: name }, name)));
    this.filter = element("input", { type: "search", placeholder: "filter", "aria-label": "filter of the log", oninput: () => this.filterLog() });
    this.log = element("pre", { tabindex: "0" });
    this.bodies = Object.fromEntries(["now", "ratio", "devices", "queue", "seats", "launches", "about"].map((name) => [name, element("div")]));
    this.sections = {
      now: element("section", { class: "wide" }, this.bodies.now),
      timeline: this.section("The step, device by device", this.timeline.element, "wide"),
      steps: this.section("Step times of all launches", this.charts.steps.element),
      ratio: this.section("Step time against the first placement", element("div", {}, this.bodies.ratio, this.charts.ratio.element)),
      queue: this.section("Sequences between engines and learners", element("div", {}, this.bodies.queue, this.charts.queue.element)),
      devices: element("section", {}, element("div", { class: "tools" }, element("h2", {}, "Devices"), this.quantity), this.charts.devices.element, this.bodies.devices),
      seats: this.section("Who sits where", this.bodies.seats),
      launches: this.section("Launches", this.bodies.launches),
      log: element("section", { class: "wide" }, element("div", { class: "tools" }, element("h2", {}, "Log"), this.filter), this.log),
      about: this.section("The run", this.bodies.about),
    };
    for (const name of ["timeline", "steps", "ratio", "queue", "devices", "seats", "log", "about", "launches"]) this.sections[name].hidden = true;
    // Low panels share a place, so that none stands beside an empty one.
    const { now, timeline, steps, queue, ratio, devices, seats, launches, about, log } = this.sections;
    const stack = (...sections) => element("div", { class: "stack" }, ...sections);
    this.element = element("div", { class: "panels" }, now, timeline, stack(steps, queue), ratio, devices, stack(seats, launches, about), log);
  }

  section(name, body, kind = null) {
    return element("section", { class: kind }, element("h2", {}, name), body);
  }

  take(news) {
    const { series, log, ...told } = news;
    Object.assign(this.state, told);
    if (this.state.run) this.state.run.id = this.id;
    for (const [group, several] of Object.entries(series ?? {})) {
      for (const [name, one] of Object.entries(several)) this.extend(group, name, one);
    }
    const { run, now, ratio } = this.state;
    if (!run) return;
    this.show("now", ...nowPanel({ ...run, folder: this.id }, now, ratio));
    document.title = now?.runs ? `${now.number}/${run.of_launches} ${now.doing} – ${run.name}` : `${run.status} – ${run.name}`;
    title.textContent = run.name;
    if (!run.launches) return;
    if (told.run) {
      this.show("launches", launchTable(run));
      this.show("about", ...aboutPanel(run));
    }
    if (told.ratio || told.run) this.show("ratio", ...ratioText(ratio, run.status === "running" ? " so far" : ""));
    // Shown first, drawn then: a chart takes its width from its place.
    if (told.ratio) showRatio(this.charts.ratio, ratio);
    if ("timeline" in told || "finished" in told) {
      const underWay = now?.runs ? this.state.timeline : null;
      this.sections.timeline.hidden = !underWay && !this.state.finished;
      this.timeline.show(underWay, this.state.finished);
    }
    if (told.run || series?.steps) {
      this.sections.steps.hidden = !Object.values(this.state.series.steps).some((one) => one.at.length);
      showSteps(this.charts.steps, run, this.state.series.steps);
    }
    if (told.devices) this.show("devices", deviceTable(told.devices));
    if (told.devices || series?.devices) this.drawDevices();
    const queue = this.state.series.queue[now?.trial];
    this.sections.queue.hidden = !queue;
    if (queue && series?.queue) {
      this.show("queue", queueText(queue));
      showQueue(this.charts.queue, queue);
    }
    if (told.seats) this.show("seats", seatTable(told.seats));
    if (log) this.extendLog(log);
  }

  show(name, ...content) {
    this.sections[name].hidden = false;
    renew(this.bodies[name], ...content);
  }

  // Columns from a point on; what was there before stays.
  extend(group, name, { from, ...columns }) {
    const known = this.state.series[group][name] ?? {};
    for (const [column, values] of Object.entries(columns)) known[column] = [...(known[column] ?? []).slice(0, from), ...values];
    this.state.series[group][name] = known;
  }

  drawDevices() {
    if (this.state.devices) showDevices(this.charts.devices, this.state.devices, this.state.series.devices, this.state.now.trial, this.quantity.value);
  }

  // A line is an element of its own: who reads above the end, or has marked something, keeps the place.
  extendLog({ anew, lines }) {
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 8;
    if (anew) this.log.replaceChildren();
    this.log.append(...lines.slice(-MOST_LINES).map((line) => element("div", {}, `${line}\n`)));
    while (this.log.childElementCount > MOST_LINES) this.log.firstChild.remove();
    this.sections.log.hidden = !this.log.childElementCount;
    this.filterLog();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  filterLog() {
    const wanted = this.filter.value.toLowerCase();
    for (const line of this.log.children) line.hidden = !line.textContent.toLowerCase().includes(wanted);
  }
}

// The token is in a cookie now; nobody need see it in the address.
history.replaceState(null, "", location.pathname + location.hash);
addEventListener("hashchange", open);
open();
