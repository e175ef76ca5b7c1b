"""`vlrl serve-model`: a vision-language model behind the routes of OpenAI's API, with what RL needs beside them."""
