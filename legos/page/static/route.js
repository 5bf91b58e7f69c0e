// The address holds the whole view: #/VIEW?parameters.

export function route() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", parameters: new URLSearchParams(text) };
}

// Parameters as a text; empty ones are left out, and lists are repeated.
export function query(parameters) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) {
      if (![undefined, null, "", false].includes(each)) found.append(name, each);
    }
  }
  return found.toString();
}

// An address from a view and its parameters.
export function address(view, parameters = {}) {
  const text = query(parameters);
  return `#/${view}${text ? `?${text}` : ""}`;
}

// Change some parameters of the view; null removes one. A new entry of the history only on `push`.
export function change(changes, { push = false } = {}) {
  const { view, parameters } = route();
  const values = {};
  for (const name of parameters.keys()) values[name] = parameters.getAll(name);
  const place = address(view, { ...values, ...changes });
  if (place === location.hash) return;
  if (push) location.hash = place;
  else {
    history.replaceState(null, "", place);
    window.dispatchEvent(new Event("hashchange"));
  }
}
