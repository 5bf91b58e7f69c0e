// Requests to the server that shows the runs.

import { query } from "./route.js";

const KEY = "legos-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

// The answer to a GET request; parameters that are empty are left out, lists are repeated.
export const get = (path, parameters = {}) => request(`${path}?${query(parameters)}`, {});

// The answer to a question in JSON; a signal gives it up.
export const post = (path, values, signal) =>
  request(path, { method: "POST", body: JSON.stringify(values), headers: { "content-type": "application/json" }, signal });

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await fetch(`api/${path}`, {
      ...options,
      headers: { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) },
    });
  } catch {
    throw new ApiError(0, "the server does not answer; start `legos view` again");
  }
  const text = await response.text();
  let values;
  try {
    values = JSON.parse(text);
  } catch {
    throw new ApiError(response.status, text.slice(0, 300) || `status ${response.status}`);
  }
  if (!response.ok) throw new ApiError(response.status, values.error?.message ?? text);
  return { values, text };
}

let loading = null;

// plotly.js, loaded once and only where curves are drawn.
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "plotly.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = async () => {
      loading = null;
      const answer = await fetch("plotly.js").then((each) => each.json(), () => ({}));
      reject(new ApiError(404, answer.error?.message ?? "plotly.js cannot be loaded"));
    };
    document.head.append(script);
  });
  return loading;
}
