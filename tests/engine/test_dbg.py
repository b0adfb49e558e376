from tests.engine.test_driver import *
async def test_x(desk):
    desk.script(
        "main",
        together(delegates("digger", carved=True, limits=Limits(max_tokens=6000), wait=False), says("", usage=None)),
        replace_usage(calls("look"), Usage(6000, 500)),  # about four thousand were left to it
        says("done", usage=Usage(1, 1)),
    )
    desk.script("digger", calls("look"), says("gold"))
    first = desk.process(look=a_minute)
    await first.open()
    await first.retinue.spawn("dig", limits=Limits(max_tokens=10_000))
    await asyncio.sleep(1)
    await first.kill()
    for a in ("main","digger"):
        for e in desk.events(a): print(a, e)
    second = desk.process()
    await second.open()
    print(await second.retinue.resume(desk.run_of("main")))
    print(await second.retinue.wait(desk.run_of("main"), desk.run_of("digger")))
    await second.close()
