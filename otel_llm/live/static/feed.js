// The events of the service, by `fetch`: unlike EventSource it can send a token, which never stands in an address.

const PATH = "/v1/events";
const TOKEN = "otel-llm-token";
const SILENT_MS = 10_000;
const WAITS_S = [1, 2, 4, 8];

/** The connection to the service: events go to `handle(name, value)`, its state to `state(state, words)`. */
export class Feed {
  #handle;
  #state;
  #abort = new AbortController();
  #failures = 0;
  #timer = 0;
  #parameters = {};

  constructor(handle, state) {
    this.#handle = handle;
    this.#state = state;
  }

  /** Set the token of this tab; an empty one forgets it. */
  set token(text) {
    if (text) sessionStorage.setItem(TOKEN, text);
    else sessionStorage.removeItem(TOKEN);
  }

  /** Connect, or connect anew with other parameters. */
  open(parameters = this.#parameters) {
    this.#parameters = parameters;
    this.#abort.abort();
    clearTimeout(this.#timer);
    this.#abort = new AbortController();
    this.#run(this.#abort);
  }

  async #run(abort) {
    let silent = 0;
    const listen = () => {
      clearTimeout(silent);
      silent = setTimeout(() => abort.abort("silent"), SILENT_MS);
    };
    try {
      listen();
      const response = await fetch(`${PATH}?${new URLSearchParams(this.#parameters)}`, this.#request(abort.signal));
      if (!response.ok) return await this.#refused(abort, response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        listen();
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) this.#take(event);
      }
      this.#again(abort, "the service has closed the connection");
    } catch (error) {
      if (abort.signal.aborted && abort.signal.reason !== "silent") return; // another connection has replaced it
      this.#again(abort, abort.signal.aborted ? "the service is silent" : "the service does not answer", error);
    } finally {
      clearTimeout(silent);
    }
  }

  #request(signal) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    return { signal, headers, cache: "no-store", credentials: "same-origin", redirect: "error" };
  }

  #take(text) {
    const found = /^event: (\w+)\ndata: (.*)$/.exec(text);
    if (!found) return;
    this.#failures = 0;
    this.#handle(found[1], JSON.parse(found[2]));
  }

  async #refused(abort, response) {
    if (response.status === 401) {
      this.#state("token", sessionStorage.getItem(TOKEN) ? "the token is not known here" : "a token is needed");
      return;
    }
    const words = (await response.text()).slice(0, 200).trim();
    if (response.status === 503) this.#again(abort, words);
    else this.#state("refused", `${response.status}: ${words}`);
  }

  #again(abort, words) {
    if (abort !== this.#abort) return;
    const wait = WAITS_S[Math.min(this.#failures++, WAITS_S.length - 1)];
    this.#state("lost", `${words}; again in ${wait} s`);
    this.#timer = setTimeout(() => this.open(), wait * 1000);
  }
}
