"""The control socket: how a running process is asked to change what it records.

A process that can be controlled has one Unix socket in a private directory and
one thread that waits on it. Requests are fixed verbs with strict fields, in
JSON; there is no code, no path and no pickle on the wire.

To add a verb, describe it and add it to the registry of the server::

    from meshscope.probe.control.verbs import Flag, Refusal, Verb, Whole
    from meshscope.probe.schema.message import message

    def arm(values):                        # on the control thread; be quick
        if values["first_step"] <= control.step:
            raise Refusal(message("reply.step_begun", step=values["first_step"]))
        return {"armed": True}              # the reply, JSON

    registry.add(Verb("arm", "Record a few steps in depth.", arm,
                      {"first_step": Whole(0, 2**62), "dry": Flag(default=False)}))

What a rank offers is listed in ``probe.session.verbs``; what is common to every server
(``ControlServer``) and how clients ask (``client``) knows no verb by name.
"""
