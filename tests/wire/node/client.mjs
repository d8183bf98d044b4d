// Asks a gateway through the OpenAI client for Node and prints what it got, as one JSON object.
//   node client.mjs BASE_URL KEY MODEL
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const off = { thinking: { type: "disabled" }, temperature: 0 };
const user = (content) => [{ role: "user", content }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather forecast for a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];

async function failure(work) {
  try {
    await work();
    return null;
  } catch (error) {
    return { class: error.constructor.name, status: error.status ?? null, code: error.code ?? null, param: error.param ?? null };
  }
}

const cases = {
  async models() {
    const listed = await client.models.list();
    return { listed: listed.data.map((item) => item.id), one: (await client.models.retrieve(model)).id };
  },

  async whole() {
    const { data, request_id } = await client.chat.completions
      .create({ model, messages: user("What is the capital of France?"), ...off })
      .withResponse();
    const { message, finish_reason } = data.choices[0];
    return { content: message.content, finish: finish_reason, usage: data.usage, hasRequestId: Boolean(request_id) };
  },

  async stream() {
    const messages = user("What is the capital of France?");
    const stream = await client.chat.completions.create({
      model, messages, ...off, stream: true, stream_options: { include_usage: true },
    });
    const seen = { content: "", roles: [], finishes: [], usage: null };
    for await (const chunk of stream) {
      const choice = chunk.choices[0];
      if (choice?.delta.role) seen.roles.push(choice.delta.role);
      if (choice?.finish_reason) seen.finishes.push(choice.finish_reason);
      seen.content += choice?.delta.content ?? "";
      seen.usage = chunk.usage ?? seen.usage;
    }
    return seen;
  },

  async helper() {
    const runner = client.chat.completions.stream({ model, messages: user("What is the capital of France?"), ...off });
    let deltas = "";
    runner.on("content", (delta) => (deltas += delta));
    return { content: await runner.finalContent(), deltas };
  },

  async reasoning() {
    const messages = user("What is the capital of France? Think first.");
    const stream = await client.chat.completions.create({ model, messages, temperature: 0, stream: true });
    const seen = { reasoning: "", content: "" };
    for await (const { choices } of stream) {
      seen.reasoning += choices[0].delta.reasoning_content ?? "";
      seen.content += choices[0].delta.content ?? "";
    }
    return seen;
  },

  async tools() {
    const messages = user("What is the weather in Paris?");
    const runner = client.chat.completions.stream({ model, messages, tools, ...off });
    const { choices } = await runner.finalChatCompletion();
    const [call] = choices[0].message.tool_calls;
    messages.push(choices[0].message, { role: "tool", tool_call_id: call.id, content: "Sunny, 21 degrees." });
    const answer = await client.chat.completions.create({ model, messages, tools, ...off });
    return {
      finish: choices[0].finish_reason,
      name: call.function.name,
      arguments: JSON.parse(call.function.arguments),
      answer: answer.choices[0].message.content,
    };
  },

  async errors() {
    const ask = (options) => () => client.chat.completions.create({ model, messages: user("Say hello."), ...off, ...options });
    return {
      temperature: await failure(ask({ temperature: -1 })),
      streamed: await failure(ask({ max_tokens: 0, stream: true })),
      model: await failure(ask({ model: "gpt-9" })),
      key: await failure(() => new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list()),
    };
  },

  async abort() {
    const stream = await client.chat.completions.create({ model, messages: user("Say hello."), ...off, stream: true });
    for await (const _ of stream) break; // leaves, which closes the connection
    return { next: (await client.models.retrieve(model)).id };
  },

  // Of a gateway whose script fails after some text.
  async broken() {
    let content = "";
    const error = await failure(async () => {
      const stream = await client.chat.completions.create({ model, messages: user("Break."), ...off, stream: true });
      for await (const { choices } of stream) content += choices[0]?.delta.content ?? "";
    });
    return { content, error };
  },
};

const wanted = process.argv[5] ? [process.argv[5]] : Object.keys(cases).filter((name) => name !== "broken");
const results = {};
for (const name of wanted) results[name] = await cases[name]();
console.log(JSON.stringify(results));
