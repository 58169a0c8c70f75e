// A form from the schema of a model's inputs. Texts of the model are only ever text content, never markup.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// The schema of one input, with what it refers to in its place.
function resolve(schema, schemas) {
  const parts = [schema, ...(schema.allOf ?? [])];
  return Object.assign({}, ...parts.map((part) => (part.$ref ? schemas[part.$ref.split("/").pop()] : part)), {
    ...schema,
  });
}

function kindOf(schema) {
  if (schema.enum) return "choice";
  if (schema.type === "boolean") return "boolean";
  if (schema.type === "integer" || schema.type === "number") {
    return schema.minimum !== undefined && schema.maximum !== undefined ? "range" : "number";
  }
  if (schema.type === "string") {
    if (schema.format === "uri") return "file";
    return schema.format === "password" ? "secret" : "text";
  }
  return "json";
}

function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

const MAKERS = {
  choice(id, schema, required) {
    const options = schema.enum.map((value, index) => element("option", { value: String(index) }, shown(value)));
    const select = element("select", { id }, ...options);
    if (!required || schema.default === undefined) select.prepend(element("option", { value: "" }, ""));
    const index = schema.enum.indexOf(schema.default);
    select.value = index < 0 ? "" : String(index);
    return {
      node: select,
      control: select,
      read: () => (select.value === "" ? undefined : schema.enum[Number(select.value)]),
      write: (value) => (select.value = value === undefined ? "" : String(schema.enum.indexOf(value))),
    };
  },
  boolean(id, schema) {
    const box = element("input", { id, type: "checkbox", checked: schema.default === true });
    return { node: box, control: box, read: () => box.checked, write: (value) => (box.checked = value === true) };
  },
  number(id, schema) {
    const step = schema.type === "integer" ? "1" : "any";
    const box = element("input", { id, type: "number", step, min: schema.minimum ?? "", max: schema.maximum ?? "" });
    box.value = schema.default ?? "";
    return {
      node: box,
      control: box,
      read: () => (box.value === "" ? undefined : Number(box.value)),
      write: (value) => (box.value = value ?? ""),
    };
  },
  range(id, schema, required, label) {
    const field = MAKERS.number(id, schema);
    const step = schema.type === "integer" ? "1" : String((schema.maximum - schema.minimum) / 100 || "any");
    const slider = element("input", { type: "range", min: schema.minimum, max: schema.maximum, step });
    slider.setAttribute("aria-label", `${label}, slider`);
    slider.value = field.control.value || schema.minimum;
    slider.addEventListener("input", () => (field.control.value = slider.value));
    field.control.addEventListener("input", () => (slider.value = field.control.value));
    const write = (value) => {
      field.write(value);
      slider.value = value ?? schema.minimum;
    };
    return { ...field, write, node: element("div", { className: "range" }, slider, field.control) };
  },
  text(id, schema) {
    const area = element("textarea", { id, rows: 2, value: schema.default ?? "" });
    return {
      node: area,
      control: area,
      read: () => (area.value === "" && !schema.default ? undefined : area.value),
      write: (value) => (area.value = value ?? ""),
    };
  },
  secret(id) {
    const box = element("input", { id, type: "password", autocomplete: "off" });
    return { node: box, control: box, read: () => box.value || undefined, write: (value) => (box.value = value ?? "") };
  },
  json(id, schema) {
    const area = element("textarea", { id, rows: 3, className: "json", spellcheck: false });
    const write = (value) => (area.value = value === undefined ? "" : JSON.stringify(value, null, 1));
    write(schema.default);
    return { node: area, control: area, read: () => (area.value.trim() === "" ? undefined : JSON.parse(area.value)), write };
  },
  file(id, schema, required, label) {
    const address = element("input", { id, type: "text", placeholder: "https://… or data:…", value: schema.default ?? "" });
    const picker = element("input", { type: "file" });
    picker.setAttribute("aria-label", `${label}, file`);
    const preview = element("div");
    let data;
    const take = async (file) => {
      if (!file) return;
      data = await new Promise((done, failed) => {
        const reader = new FileReader();
        reader.onload = () => done(reader.result);
        reader.onerror = () => failed(reader.error);
        reader.readAsDataURL(file);
      });
      address.value = "";
      const name = `${file.name}, ${file.size.toLocaleString()} bytes`;
      preview.replaceChildren(...(file.type.startsWith("image/") ? [element("img", { src: data, alt: name })] : []), name);
      drop.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const drop = element("div", { className: "drop" }, picker, address, preview);
    picker.addEventListener("change", () => take(picker.files[0]));
    address.addEventListener("input", () => {
      data = undefined;
      preview.replaceChildren();
    });
    drop.addEventListener("dragover", (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      take(event.dataTransfer.files[0]);
    });
    drop.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        take(event.clipboardData.files[0]);
      }
    });
    return {
      node: drop,
      control: address,
      read: () => data ?? (address.value || undefined),
      write: (value) => {
        const held = typeof value === "string" && value.startsWith("data:") ? value : undefined;
        data = held;
        picker.value = "";
        address.value = held ? "" : (value ?? "");
        preview.replaceChildren(...(held ? [`a file of ${held.length.toLocaleString()} characters as data URL`] : []));
      },
    };
  },
};

export class InputForm {
  constructor(place, schema, schemas) {
    this.fields = new Map();
    const required = new Set(schema.required ?? []);
    const inputs = Object.entries(schema.properties ?? {}).map(([name, given]) => [name, resolve(given, schemas)]);
    inputs.sort(([, one], [, other]) => (one["x-order"] ?? 0) - (other["x-order"] ?? 0));
    place.replaceChildren(...inputs.map(([name, input]) => this.#field(name, input, required.has(name))));
    if (!inputs.length) place.append(element("p", { className: "hint" }, "This model has no inputs."));
  }

  #field(name, schema, required) {
    const id = `input-${name}`;
    const made = MAKERS[kindOf(schema)](id, schema, required, name);
    const fault = element("p", { className: "fault", id: `${id}-fault` });
    const hint = element("p", { className: "hint", id: `${id}-hint` }, schema.description ?? "");
    const marks = [required ? "required" : "", schema.deprecated ? "deprecated" : ""].filter(Boolean).join(", ");
    made.control.setAttribute("aria-describedby", `${id}-hint ${id}-fault`);
    if (required) made.control.setAttribute("aria-required", "true");
    this.fields.set(name, { ...made, fault, schema });
    const label = element("label", { htmlFor: id }, name);
    return element(
      "div",
      { className: "field" },
      label,
      element("span", { className: "mark" }, marks),
      ...(schema.description ? [hint] : []),
      made.node,
      fault,
    );
  }

  // The inputs, without those that were left empty. Throws if a text is not JSON, with the fault at its field.
  read() {
    const input = {};
    let wrong = null;
    for (const [name, field] of this.fields) {
      try {
        const value = field.read();
        if (value !== undefined) input[name] = value;
      } catch (error) {
        wrong ??= error;
        this.#mark(field, `not valid JSON: ${error.message}`);
      }
    }
    if (wrong) throw wrong;
    return input;
  }

  write(input) {
    for (const [name, field] of this.fields) field.write(input[name]);
  }

  reset() {
    this.clearFaults();
    for (const field of this.fields.values()) field.write(field.schema.default);
  }

  clearFaults() {
    for (const field of this.fields.values()) this.#mark(field, "");
  }

  // Show the faults of a 422 at their fields; returns the texts of those that belong to none.
  show(faults) {
    const others = [];
    for (const { loc = [], msg } of faults) {
      const place = String(loc[2] ?? "");
      const field = this.fields.get(place) ?? this.fields.get(place.split("/")[0]);
      if (field) this.#mark(field, [field.fault.textContent, msg].filter(Boolean).join("\n"));
      else others.push([loc.slice(1).join("."), msg].filter(Boolean).join(": "));
    }
    for (const field of this.fields.values()) {
      if (field.fault.textContent) {
        field.control.focus();
        break;
      }
    }
    return others;
  }

  #mark(field, text) {
    field.fault.textContent = text;
    field.control.setAttribute("aria-invalid", text ? "true" : "false");
  }
}
