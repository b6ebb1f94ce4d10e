"""Training of Medusa and EAGLE heads: a model and prompts enter, heads in the formats that others read leave."""
