"""The playground: ask a question of a policy, watch its steps, edit one and continue from there.

playground_requests.py   what a browser sends
policy_settings.py       which policy, index and reward model a request names
asked_policy.py          a policy that can be asked, and where policies come from
loaded_policies.py       policies that are loaded when they are asked for, and dropped when others are
told_steps.py            the steps of an episode as events, with their scores
answer_events.py         the events of one answer
kept_answers.py          the newest answers, to continue from
"""
