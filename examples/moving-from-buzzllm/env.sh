# buzzllm has no settings file: its settings are environment variables and flags. Source this file first.
export OPENAI_API_KEY=not-a-real-key
export URL=http://127.0.0.1:8000/v1/chat/completions
export NO_COLOR=1
