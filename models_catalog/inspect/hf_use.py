"""What a Hugging Face model is made for and takes in, by its configuration. Pure: dicts in, values out."""

from __future__ import annotations

from typing import Any

from models_catalog.facts import Input, Purpose, TaskKind
from models_catalog.inspect.reading import clean, obj, texts, whole

# Models that read one text and write another through a separate decoder: no text engine here serves them.
TRANSLATORS = frozenset({
    "t5", "mt5", "umt5", "longt5", "bart", "mbart", "marian", "m2m_100", "pegasus", "led", "blenderbot", "nllb_moe",
    "seamless_m4t", "seamless_m4t_v2",
})  # fmt: skip
LISTENERS = frozenset({"whisper", "speech_to_text", "qwen3_asr", "parakeet", "moonshine", "wav2vec2", "hubert"})
ENDINGS: tuple[tuple[str, Purpose], ...] = (
    ("ForRewardModel", "reward"),
    ("ForProcessRewardModel", "reward"),
    ("RewardModel", "reward"),
    ("ForTokenClassification", "classify_tokens"),
    ("ForCTC", "transcribe"),
)
GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForCausalLMWithValueHead", "LM")
TASKS: dict[Purpose, list[TaskKind]] = {
    "generate": ["generate"],
    "embed": ["embed"],
    "rerank": ["score"],
    "classify": ["score"],
}
SEES = ("vision_config", "visual", "mm_vision_tower", "vision_tower", "vision_encoder", "vision_model_name")
HEARS = ("audio_config", "audio_encoder_config", "speech_config", "audio_processor", "sound_config", "audio_encoder")
FILMS = ("video_token_id", "video_token_index", "video_token")


def purpose(config: dict[str, Any], *, sentence_embedding: bool, cross_encoder: bool = False) -> Purpose:
    """`sentence_embedding`: the folder has sentence-transformers' modules.json; `cross_encoder`: it says it scores."""
    names = texts(config.get("architectures"))
    kind, first = clean(config.get("model_type")), names[0] if names else ""
    if kind in LISTENERS:
        return "transcribe"
    if kind in TRANSLATORS and not first.endswith("EncoderModel"):
        return "translate"
    if first.endswith("ForSequenceClassification"):
        return "rerank" if cross_encoder or labels(config) == 1 else "classify"
    for ending, found in ENDINGS:
        if first.endswith(ending):
            return found
    if cross_encoder:
        return "rerank"
    if sentence_embedding:
        return "embed"
    if first.endswith("ForMaskedLM"):
        return "fill_mask"
    if first.endswith(GENERATORS):
        return "generate"
    return "embed" if first.endswith(("Model", "ForTextEncoding")) else ""


def tasks(found: Purpose) -> list[TaskKind]:
    return TASKS.get(found, [])


def labels(config: dict[str, Any]) -> int:
    """How many classes a classifier tells apart; two is the default of its class."""
    named = obj(config.get("id2label"))
    return len(named) or whole(config.get("num_labels")) or 2


def inputs(config: dict[str, Any], found: Purpose) -> list[Input]:
    """What it takes in: text always, unless it only listens."""
    if not found:
        return []
    if found == "transcribe":
        return ["audio"]
    places = (config, obj(config.get("thinker_config")), obj(config.get("multimodal")))
    result: list[Input] = ["text"]
    for name, keys in (("image", SEES), ("audio", HEARS), ("video", FILMS)):
        if any(place.get(key) not in (None, {}, "") for place in places for key in keys):
            result.append(name)  # type: ignore[arg-type]  # the names are those of Input
    if "vision_encoder_args" in obj(config.get("multimodal")) and "image" not in result:
        result.append("image")
    if "whisper_model_args" in obj(config.get("multimodal")) and "audio" not in result:
        result.append("audio")
    return result
