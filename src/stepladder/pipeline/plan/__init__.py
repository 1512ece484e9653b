"""`stepladder plan`: memory and time of every stage of a recipe, before anything runs.

gpu_cluster          "8xH100-80G" -> devices with their memory and speed
model_shape          a model's name -> its shape: parameters, KV cache, bytes of activations
constants.yaml       measured rates, datasheets, shapes of public models, lengths of transcripts: each with its date
cost_constants       reads them, and what `--measure` stored about this machine
transcript_profile   lengths of transcripts, counted in gold transcripts
stage_work           a stage -> what it generates, scores and trains, in tokens
memory_model         -> bytes
time_model           -> seconds
planner              puts them together for a recipe, and says what would make it fit
machine_rates        the measurement of this machine
"""
