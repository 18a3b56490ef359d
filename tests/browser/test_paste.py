"""A command is pasted, read, looked at and saved, with a keyboard alone; what was left out is said on top."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from deployments.models import Deployment
from tests.browser.checks import assert_sound, overflow
from tests.browser.deployment_rows import gpu_shelf
from tests.deployments import builders

COMMAND = (
    "# two cards\nexport HF_TOKEN=hf_thisisverysecret123\n"
    "CUDA_VISIBLE_DEVICES=0,1 vllm serve {path} —tensor-parallel-size 2 \\\n  --max-model-len 32k --swap-space 4 \\\n"
    "  --gpu-memory-utilization 0.85 --middleware my.module.Auth --api-key a-key-of-mine --port 9000 --max-modle-len 3"
)


def look(page: Page, name: str) -> None:
    for look_, width, theme in (("light", 1280, "light"), ("dark", 1280, "dark"), ("390", 390, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        assert_sound(page, f"{name}.{look_}")
        assert not overflow(page)
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_pasted_command_becomes_a_deployment(transactional_db: None, visit: Callable[..., Page]) -> None:
    copy = gpu_shelf()
    page = visit("/deployments/new", role="operator")
    page.get_by_role("link", name="Paste a command").press("Enter")
    page.get_by_label("The command").press_sequentially("x")  # the box takes the keyboard
    page.get_by_label("The command").fill(COMMAND.format(path=copy.path))
    page.get_by_role("button", name="Read it").press("Enter")
    expect(page.locator("#pasted")).to_contain_text("--middleware would load program code")
    expect(page.locator("#pasted")).to_contain_text("It was left out. --max-model-len was meant, most likely")
    assert "thisisverysecret" not in page.content() and "a-key-of-mine" not in page.content()
    look(page, "deploy-pasted-secret")
    page.get_by_role("button", name="Keep HF_TOKEN as the secret hf-token").press("Enter")
    expect(page.locator("#f-env_secrets")).to_have_value("HF_TOKEN=hf-token")
    expect(page.locator("#pasted")).to_contain_text("HF_TOKEN comes from the secret hf-token")
    assert "thisisverysecret" not in page.content()
    expect(page.get_by_role("spinbutton", name="Longest conversation")).to_have_value("32000")
    expect(page.locator("input[name=gpus]:checked")).to_have_count(2)
    expect(page.locator("#plan")).not_to_contain_text("Choose a model")
    look(page, "deploy-pasted")
    page.get_by_role("button", name="Save without starting").click()
    page.wait_for_url("**/deployments/*/")
    spec = Deployment.objects.get().revision.spec
    assert spec["env_secrets"] == {"HF_TOKEN": "hf-token"}
    assert spec["options"] == {"max_model_len": 32000, "gpu_memory_utilization": 0.85} and len(spec["gpu_uuids"]) == 2


def test_an_unknown_model_is_chosen_from_what_sounds_alike(transactional_db: None, visit: Callable[..., Page]) -> None:
    copy = gpu_shelf()
    builders.make_copy(copy.host, "Llama-3.3-70B-Instruct")
    page = visit("/deployments/paste", role="operator")
    page.get_by_label("The command").fill("vllm serve meta-llama/Llama-3.1-8B-Instruct --seed 7")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#pasted")).to_contain_text("is not in the catalog")
    expect(page.get_by_role("link", name="Download it")).to_be_visible()
    look(page, "deploy-pasted-unknown")
    page.get_by_role("button", name="Llama-3.3-70B-Instruct").click()
    expect(page.locator("input[name=artifact]:checked")).to_have_count(1)
    expect(page.locator("#f-extra_args")).to_have_value("--seed 7")
